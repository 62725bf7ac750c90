#include "negotiate/multi_host/granted_rounds.h"

#include <algorithm>

#include "execute/shared_memory/result_gate.h"

namespace horoacc {

void GrantedRounds::Publish(const CallName& call, uint64_t slot) {
  Latest& round = latest_.at(call);
  round.slot = slot;
  round.end = control_.header().log_words.load(std::memory_order_relaxed);
}

std::optional<TensorKey> GrantedRounds::Hold(const CallName& call) {
  const auto found = latest_.find(call);
  if (found == latest_.end()) return std::nullopt;
  const auto [key, slot, end] = found->second;
  if (end == 0) {
    latest_.erase(found);
    dropped_.push_back({call, key, 0});
    return key;
  }
  // Else all have finished it, and the slot may be another round's.
  if (control_.LeastWordsFinished() < end) (void)ResultGate(control_.slot(slot).gate).Hold();
  return std::nullopt;
}

Status GrantedRounds::Settle(const CallName& call, bool drop) {
  const auto found = latest_.find(call);
  if (found == latest_.end()) return {};
  const Latest round = found->second;
  latest_.erase(found);
  if (round.IsOver(control_.LeastWordsFinished())) return {};
  const HostGroup::RingingLock lock(group_);
  HA_TRY(Status(lock.status()));
  ResultGate gate(control_.slot(round.slot).gate);
  if (drop && gate.opened()) {
    return MakeError(ErrorKind::kSystem,
                     "hosts disagree on '" + call.name + "': it has results, and is dropped");
  }
  if (drop) {
    gate.Drop();
    control_.id(round.key.id).last_decision.store(kUndecided, std::memory_order_release);
    dropped_.push_back({call, round.key, round.end});
  } else {
    gate.Open();
  }
  group_.RingMembers({}, true);
  return {};
}

bool GrantedRounds::IsBegun(TensorKey key) const {
  const uint64_t finished = control_.LeastWordsFinished();
  return std::ranges::any_of(latest_,
                             [&](const auto& one) {
                               return one.second.key == key && !one.second.IsOver(finished);
                             }) ||
         std::ranges::find(dropped_, key, &Dropped::key) != dropped_.end();
}

bool GrantedRounds::AnyBegun() const {
  const uint64_t finished = control_.LeastWordsFinished();
  return !std::ranges::all_of(latest_,
                              [&](const auto& one) { return one.second.IsOver(finished); });
}

bool GrantedRounds::IsCarriedOut(const std::vector<CallName>& calls) const {
  const uint64_t finished = control_.LeastWordsFinished();
  return std::ranges::any_of(dropped_, [&](const Dropped& one) {
    return one.end > finished && std::ranges::find(calls, one.call) != calls.end();
  });
}

std::optional<TensorKey> GrantedRounds::EndDropped(const CallName& call) {
  const auto found = std::ranges::find(dropped_, call, &Dropped::call);
  if (found == dropped_.end()) return std::nullopt;
  const TensorKey key = found->key;
  dropped_.erase(found);
  return key;
}

std::vector<TensorKey> GrantedRounds::TakeDropped() {
  std::vector<TensorKey> over;
  const uint64_t finished = control_.LeastWordsFinished();
  std::erase_if(dropped_, [&](const Dropped& one) {
    if (one.end > finished) return false;
    over.push_back(one.key);
    return true;
  });
  return over;
}

}  // namespace horoacc
