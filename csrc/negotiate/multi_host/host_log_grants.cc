// The rounds of granted calls in a host's log.
#include <algorithm>
#include <utility>

#include "execute/shared_memory/result_gate.h"
#include "negotiate/multi_host/host_log.h"

namespace horoacc {

void HostLog::TakeGranted(const Grants::Grant& grant) {
  const auto known = known_.find(grant.call);
  const TensorKey key = known->second.key;
  Untold entry{.decision = Decision(), .ordered = false, .keys = {key}, .calls = {grant.call}};
  Decision& decision = *entry.decision;
  decision.path = grant.path;
  decision.run = grant.latest_run();
  decision.ids = {key.id};
  decision.facts.resize(1);
  taken_[key.id] = key.generation;
  Forget(known);
  granted_[grant.call] = {.key = key};
  untold_.push_back(std::move(entry));
}

bool HostLog::Hold(const CallName& call) {
  const auto round = granted_.find(call);
  if (round == granted_.end()) return true;
  const auto [key, slot, end] = round->second;
  if (end == 0) {
    std::erase_if(untold_, [&](const Untold& entry) {
      return !entry.ordered && entry.decision && entry.decision->run != 0 && entry.calls[0] == call;
    });
    taken_.erase(key.id);
    granted_.erase(round);
    dropped_.push_back({call, key, 0});
    return false;
  }
  // Else all have finished it, and the slot may be another round's.
  if (control_.LeastWordsFinished() < end) (void)ResultGate(control_.slot(slot).gate).Hold();
  return true;
}

// The latest round here is one that all hosts have begun, unless it is dropped.
Status HostLog::Settle(const Grants::Grant& grant, RoundFate fate) {
  if (const auto found = granted_.find(grant.call); found != granted_.end()) {
    const GrantedRound round = found->second;
    granted_.erase(found);
    HA_TRY(SettleLatest(grant.call, round, fate == RoundFate::kDropped));
  }
  if (fate != RoundFate::kDrained) return {};
  Decision drain;
  drain.kind = Decision::Kind::kDrain;
  drain.path = grant.path;
  drain.partial = true;  // the request goes with it
  drain.run = RunOf(grant.number, grant.begun + 1);
  drain.facts.resize(1);
  drain.facts[0].request = *grant.request;
  untold_.push_back({.decision = std::move(drain), .ordered = false});
  return {};
}

Status HostLog::SettleLatest(const CallName& call, const GrantedRound& round, bool drop) {
  if (control_.LeastWordsFinished() >= round.end) return {};
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

bool HostLog::IsBegun(TensorKey key) const {
  const uint64_t finished = control_.LeastWordsFinished();
  return std::ranges::any_of(granted_,
                             [&](const auto& one) {
                               const GrantedRound& round = one.second;
                               return round.key == key && (round.end == 0 || round.end > finished);
                             }) ||
         std::ranges::any_of(dropped_, [&](const DroppedRound& one) { return one.key == key; });
}

bool HostLog::AnyBegun() const {
  const uint64_t finished = control_.LeastWordsFinished();
  return std::ranges::any_of(
      granted_, [&](const auto& one) { return one.second.end == 0 || one.second.end > finished; });
}

bool HostLog::IsRefused(TensorKey key) const {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    if (control_.HasSubmitted(r, key) && control_.row(r, key.id, key.generation).error != 0)
      return true;
  }
  return false;
}

// Whether it ends a call whose dropped round ranks of this host still carry out.
bool HostLog::EndsDropped(const Untold& entry) const {
  const uint64_t finished = control_.LeastWordsFinished();
  return std::ranges::any_of(dropped_, [&](const DroppedRound& one) {
    return one.end > finished && std::ranges::find(entry.calls, one.call) != entry.calls.end();
  });
}

std::vector<TensorKey> HostLog::TakeDropped() {
  std::vector<TensorKey> over;
  const uint64_t finished = control_.LeastWordsFinished();
  std::erase_if(dropped_, [&](const DroppedRound& one) {
    if (one.end > finished) return false;
    over.push_back(one.key);
    return true;
  });
  return over;
}

}  // namespace horoacc
