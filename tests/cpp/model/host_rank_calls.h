#pragma once
// How a rank of a model submits its calls; the second half of host_rank.h.
#include "model/host_rank.h"

namespace horoacc::model {

inline const HostStep& HostRank::Step(int pauses) {
  const HostStep& step = script()[step_++];
  const Call* const call = Find(step.name);
  switch (step.kind) {
    case HostStep::Kind::kSubmit:
    case HostStep::Kind::kPlanned:
    case HostStep::Kind::kRecurs:
    case HostStep::Kind::kChanged:
    case HostStep::Kind::kRefuse:
      Submit(step.name.empty() ? "#" + std::to_string(unnamed_++) : step.name, pauses, step.kind);
      break;
    case HostStep::Kind::kWait:
      wait_begun_ = false;
      break;
    case HostStep::Kind::kJoin:
      joined_ = true;
      ++joins_;
      Must(controller().Join(unnamed_));
      break;
    case HostStep::Kind::kEnd:
      Must(controller().End(step.end));
      if (HasFault(HostFault::kReleasesEarly)) Must(controller().Release());
      break;
    case HostStep::Kind::kGiveUp:
      if (call) {
        const std::string text = "rank " + std::to_string(place_.rank) + " gives up " + call->name;
        Must(controller().Reject(call->key, MakeError(ErrorKind::kTimeout, text)));
      }
      if (step.end) Must(controller().End(step.end));
      break;
    case HostStep::Kind::kAsk:
      break;
  }
  return step;
}

inline void HostRank::Submit(const std::string& name, int pauses, HostStep::Kind kind) {
  Call call{name};
  call.refuses = kind == HostStep::Kind::kRefuse;
  call.recurs = call.refuses || kind == HostStep::Kind::kPlanned ? Recurs::kInPlan
                : kind == HostStep::Kind::kRecurs || kind == HostStep::Kind::kChanged
                    ? Recurs::kByName
                    : Recurs::kNo;
  call.changed = kind == HostStep::Kind::kChanged;
  if (name[0] == '#') {
    call.number = std::stoull(name.substr(1));
    call.key.id = kNamedIds + static_cast<uint32_t>(call.number % kUnnamedIds);
  } else if (!LookUp(call, false)) {
    return;
  }
  calls_.push_back(std::move(call));
  WriteRow(calls_.back());
  if (place_.shape->slow_rows) return;
  while (MayAnnounce() && wrong_.empty()) Announce(pauses);
}

inline void HostRank::SubmitAgain(int pauses) {
  const std::string name = again_.front();
  again_.pop_front();
  Submit(name, pauses);
}

// False: the call has to wait for another one of the rank that has its id, or for an id.
inline bool HostRank::LookUp(Call& call, bool afresh) {
  const auto holds_for_other = [&](uint32_t id) {
    return std::ranges::any_of(
        calls_, [&](const Call& other) { return other.key.id == id && other.name != call.name; });
  };
  auto known = ids_.find(call.name);
  if (afresh || known == ids_.end() || holds_for_other(known->second.id)) {
    const auto found = control().Lookup(call.name);
    if (!found.ok()) {
      stuck_at_ = ProgressOfHost();
      again_.push_front(call.name);
      return false;
    }
    stuck_at_ = 0;
    lookups_.emplace_back(call.name, found.value().id);
    known = ids_.insert_or_assign(call.name, found.value()).first;
    if (holds_for_other(known->second.id)) {
      again_.push_back(call.name);
      return false;
    }
  }
  call.key.id = known->second.id;
  return true;
}

inline void HostRank::WriteRow(Call& call) {
  uint64_t input = kPrivate;
  const bool named = call.key.id < kNamedIds;
  if (place_.shape->eager) {
    // All unnamed calls give the same numbers.
    float* const numbers = place_.inputs->at(named ? call.name : "");
    std::fill_n(numbers, kNumbers, InputOf(place_.rank, RoundsOf(call.name)));
    input = place_.arena->OffsetOf(numbers);
  }
  call.key = place_.segment->WriteRow(call.key.id, Collective::kAllreduce, input);
  Row& row = control().row(control().me(), call.key.id, call.key.generation);
  row.number = call.number;
  row.sync_round = waits_;
  row.recurs = call.recurs;
  row.prescale = call.changed ? 2 : 1;
  row.error = 0;
  if (call.refuses) {  // its text is any memory of the rank
    row.extra = place_.arena->OffsetOf(place_.inputs->at(call.name));
    row.error = sizeof(float);
    row.signature = ~row.signature;
  }
  if (HasFault(HostFault::kCountsBeforeRow)) row.generation.store(0);
}

inline void HostRank::Announce(int pauses) {
  const auto call = std::ranges::find(calls_, false, &Call::announced);
  const bool named = call->key.id < kNamedIds;
  uint32_t version = named ? ids_.at(call->name).id_version : 0;
  if (HasFault(HostFault::kSkipsLookUp))
    version = control().id(call->key.id).arrivals.load().id_version();
  const auto announced = controller().Announce({call->key.id, call->key.generation, version});
  if (!announced.ok()) return Must(announced.error());
  std::atomic<uint64_t>& row =
      control().row(control().me(), call->key.id, call->key.generation).generation;
  if (announced.value() == Announced::kTaken) {
    call->announced = true;
    call->pauses = pauses;
    row.store(call->key.generation);
    return;
  }
  row.store(0);
  if (named && !LookUp(*call, true)) {
    calls_.erase(call);
    return;
  }
  WriteRow(*call);
}

inline void HostRank::Unblock() {
  unblocked_ = Blocked();
  if (!std::exchange(wait_begun_, true)) ++waits_;
  std::vector<uint32_t> in_flight;
  for (const Call& call : calls_) in_flight.push_back(call.key.id);
  Must(controller().Unblock(in_flight));
}

// The set has ended, and the calls that are left fail.
inline void HostRank::Close() {
  closed_ = true;
  calls_.clear();
  again_.clear();
  joined_ = false;
  Must(controller().Release());
}

}  // namespace horoacc::model
