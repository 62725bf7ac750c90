#include "negotiate/multi_host/multi_host_root.h"

#include <algorithm>
#include <utility>

#include "negotiate/control_segment/segment_layout.h"
#include "negotiate/disagreement.h"
#include "negotiate/multi_host/eager.h"

namespace horoacc {
namespace {

constexpr size_t kMostRecurring = 4096;
constexpr uint64_t kMostNeeded = 1000;

}  // namespace

MultiHostRoot::MultiHostRoot(std::vector<int> global_ranks, uint64_t fusion_threshold,
                             bool composes, bool grants, bool nccl)
    : global_ranks_(std::move(global_ranks)),
      composes_(composes),
      grants_(grants),
      nccl_(nccl),
      grants_now_(grants),
      joined_(global_ranks_.size()),
      plan_memory_(PlanState::BytesFor(kNamedIds)),
      plan_(PlanState::Over(plan_memory_.data(), kNamedIds, fusion_threshold)) {}

MultiHostRoot::Verdicts MultiHostRoot::Ready(const CallName& call, const ReadySet& ready_set,
                                             uint64_t seen, const RootPlace& place) {
  Verdicts verdicts;
  // The message was on its way while the call was rejected: its rank learns of that by itself.
  if (IsOver(call, seen)) return verdicts;
  Pending& pending = pending_[call];
  (void)pending.ready_set.Add(ready_set);
  if (ready_set.Has(0)) pending.place = place;
  if (!Complete(pending)) return verdicts;
  const Pending complete = std::move(pending);
  pending_.erase(call);
  Decide(call, complete, verdicts);
  return verdicts;
}

bool MultiHostRoot::Complete(const Pending& pending) const {
  if (pending.ready_set.count() == joined_.size()) return true;
  for (uint32_t m = 0; m < joined_.size(); ++m) {
    if (!joined_[m] && !pending.ready_set.Has(m)) return false;
  }
  return true;
}

void MultiHostRoot::Decide(const CallName& call, const Pending& pending, Verdicts& verdicts) {
  const ReadySet& ready_set = pending.ready_set;
  const bool partial = ready_set.count() < global_ranks_.size();
  if (ready_set.Has(0) && call.named) Adopt(call, pending.place.id, verdicts);
  Error refusal = Refusal(call, ready_set);
  if (partial || refusal.kind != ErrorKind::kOk) {
    MultiHostDecision alone;
    alone.calls = {call};
    if (refusal.kind != ErrorKind::kOk) {
      alone.decision = Decision::Failure(std::move(refusal));
    } else {
      alone.decision.partial = true;
      alone.decision.path = Path::kSchedule;
      alone.decision.facts.push_back(FactsOf(ready_set, true));
    }
    Emit(std::move(alone), verdicts);
    Skip(call, verdicts);
    return;
  }
  // All have submitted it since, and nothing of the time before is on its way any more.
  rejected_.erase(call);
  const Request& own = *ready_set.groups()[0].request;
  const bool reduces = own.collective == Collective::kAllreduce;
  const uint32_t id = pending.place.id;
  Whole whole{call, FactsOf(ready_set, false), Whole::Kind::kScheduled};
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : own.tensors) bytes += tensor.bytes();
  const Recurs recurs = pending.place.recurs;
  const bool may_be_granted = grants_ && reduces && call.named && recurs != Recurs::kNo &&
                              !own.on_gpu && bytes > 0 && bytes <= kMostGrantedBytes;
  if (reduces && own.op == ReduceOp::kAdasum) {
    whole.kind = Whole::Kind::kAdasum;
  } else if (reduces && own.on_gpu) {
    if ((nccl_ || composes_) && ready_set.shared())
      whole.kind = nccl_ ? Whole::Kind::kNccl : Whole::Kind::kComposedOnGpus;
  } else if ((composes_ || may_be_granted) && reduces) {
    whole.kind = ready_set.shared() ? Whole::Kind::kComposed : Whole::Kind::kComposedWindows;
    whole.granted = may_be_granted &&
                    (recurs == Recurs::kInPlan || CameBefore(call, ready_set.groups()[0].request));
  }
  whole.facts.result = ReduceEager(ready_set, global_ranks_.size());
  if (!whole.facts.result.empty()) whole.kind = Whole::Kind::kEager;
  whole.facts.request.collective = own.collective;
  const bool alone = recurs == Recurs::kInPlan || (recurs == Recurs::kByName && may_be_granted &&
                                                   whole.kind != Whole::Kind::kEager);
  whole_.emplace(id, std::move(whole));
  const ReadyItem ready{id, pending.place.sequence, pending.place.sync_round, bytes,
                        call.named && reduces && !alone};
  for (const Bucket& bucket : TakeReady(plan_, {&ready, 1})) Run(bucket, verdicts);
}

Error MultiHostRoot::Refusal(const CallName& call, const ReadySet& ready_set) const {
  const Request& first = *ready_set.groups()[0].request;
  const bool fit = ready_set.groups().size() == 1 && first.local_error.empty() &&
                   first.collective != Collective::kAlltoall;
  const bool all = ready_set.count() == global_ranks_.size();
  if (fit && (all || first.collective == Collective::kAllreduce))
    return MakeError(ErrorKind::kOk, "");
  const std::vector<const Request*> requests = ready_set.ByMember(global_ranks_.size());
  const auto lowest = std::ranges::find_if(requests, [](const Request* r) { return r != nullptr; });
  return FindDisagreement(call.Shown((*lowest)->collective), global_ranks_, requests);
}

CallFacts MultiHostRoot::FactsOf(const ReadySet& ready_set, bool partial) const {
  CallFacts facts;
  const size_t ranks = global_ranks_.size();
  const Request& request = *ready_set.groups()[0].request;
  if (partial) {
    facts.request = request;
  } else {
    facts.proposal = ready_set.proposal();
  }
  if (request.collective == Collective::kAllgather) {
    const std::vector<const Request*> requests = ready_set.ByMember(ranks);
    for (size_t t = 0; t < request.tensors.size(); ++t) {
      for (const Request* each : requests) facts.rows.push_back(each->tensors[t].shape[0]);
    }
  }
  if (request.collective == Collective::kAlltoall) {
    for (const Request* each : ready_set.ByMember(ranks)) {
      for (size_t to = 0; to < ranks; ++to) facts.splits.push_back(SplitOf(*each, to, ranks));
    }
  }
  return facts;
}

bool MultiHostRoot::CameBefore(const CallName& call,
                               const std::shared_ptr<const Request>& request) {
  if (recurring_.size() >= kMostRecurring) recurring_.clear();  // names that do not come again
  Recurring& last = recurring_[call];
  if (last.request == request || (last.request && *last.request == *request))
    return ++last.times >= last.needed;
  // Whoever alternates would have the set's grants revoked again and again.
  if (last.request) last.needed = std::min(2 * last.needed, kMostNeeded);
  last.request = request;
  last.times = 0;
  return false;
}

// The plan knows calls by the root's ids. An id may have gone to another name, and a name to
// another id: the root does not hear of it while its own rank has joined, so each name has one id
// here and each id one name.
void MultiHostRoot::Adopt(const CallName& call, uint32_t id, Verdicts& verdicts) {
  if (id >= name_of_.size()) {
    name_of_.resize(id + 1);
    last_.resize(id + 1);
  }
  if (name_of_[id] == call) return;
  Abandon(id, verdicts);
  if (const auto old = id_of_.find(call); old != id_of_.end()) Abandon(old->second, verdicts);
  name_of_[id] = call;
  id_of_[call] = id;
}

// Calls that waited only for the id's may run.
void MultiHostRoot::Abandon(uint32_t id, Verdicts& verdicts) {
  id_of_.erase(name_of_[id]);
  name_of_[id] = {};
  const uint32_t bucket = plan_.items[id].bucket;
  ForgetItem(plan_, id);
  if (bucket != 0 && plan_.buckets[bucket - 1].waiting == plan_.buckets[bucket - 1].count)
    Run(SplitBucket(plan_, bucket), verdicts);
}

// A call was decided by itself; its bucket goes on without it.
void MultiHostRoot::Skip(const CallName& call, Verdicts& verdicts) {
  const auto known = id_of_.find(call);
  if (known == id_of_.end()) return;
  last_[known->second] = decided_;
  Run(SkipItem(plan_, known->second), verdicts);
}

void MultiHostRoot::Run(const Bucket& ids, Verdicts& verdicts) {
  for (const Whole::Kind kind : {Whole::Kind::kScheduled, Whole::Kind::kComposed,
                                 Whole::Kind::kComposedWindows, Whole::Kind::kComposedOnGpus,
                                 Whole::Kind::kNccl, Whole::Kind::kAdasum, Whole::Kind::kEager}) {
    MultiHostDecision unit;
    for (const uint32_t id : ids) {
      const auto found = whole_.find(id);
      if (found == whole_.end() || found->second.kind != kind) continue;
      Whole whole = std::move(found->second);
      whole_.erase(found);
      if (whole.call.named) last_[id] = decided_ + 1;
      if (whole.granted && kind != Whole::Kind::kEager && grants_now_ && granted_ + 1 < kMostGrants)
        unit.decision.grant = ++granted_;  // such a call is alone
      if (kind == Whole::Kind::kEager)
        unit.decision.path = Path::kEager;
      else if (kind == Whole::Kind::kComposed)
        unit.decision.path = Path::kComposed;
      else if (kind == Whole::Kind::kComposedWindows || kind == Whole::Kind::kComposedOnGpus)
        unit.decision.path = Path::kComposedWindows;
      else if (kind == Whole::Kind::kNccl)
        unit.decision.path = Path::kNccl;
      else if (!IsBarrier(whole.facts.request.collective))
        unit.decision.path = Path::kSchedule;
      unit.calls.push_back(std::move(whole.call));
      unit.decision.facts.push_back(std::move(whole.facts));
    }
    if (!unit.calls.empty()) Emit(std::move(unit), verdicts);
  }
}

void MultiHostRoot::Emit(MultiHostDecision decision, Verdicts& verdicts) {
  ++decided_;
  verdicts.push_back(std::move(decision));
}

MultiHostRoot::Verdicts MultiHostRoot::Joined(uint32_t member, uint64_t unnamed) {
  Verdicts verdicts;
  joined_[member] = true;
  last_joined_ = global_ranks_[member];
  unnamed_ = std::max(unnamed_, unnamed);
  std::vector<CallName> complete;
  for (const auto& [call, pending] : pending_) {
    if (Complete(pending)) complete.push_back(call);
  }
  for (const CallName& call : complete) {
    const Pending pending = std::move(pending_[call]);
    pending_.erase(call);
    Decide(call, pending, verdicts);
  }
  if (std::ranges::all_of(joined_, [](bool joined) { return joined; })) EndJoin(verdicts);
  return verdicts;
}

void MultiHostRoot::EndJoin(Verdicts& verdicts) {
  for (uint32_t index = 1; index <= *plan_.bucket_count; ++index) {
    if (plan_.buckets[index - 1].waiting > 0) Run(SplitBucket(plan_, index), verdicts);
  }
  MultiHostDecision join;
  join.decision.kind = Decision::Kind::kJoin;
  join.decision.last_joined = last_joined_;
  join.decision.unnamed = unnamed_;
  Emit(std::move(join), verdicts);
  joined_.assign(joined_.size(), false);
  unnamed_ = 0;
}

MultiHostRoot::Verdicts MultiHostRoot::Split(uint32_t bucket, const CallName& witness,
                                             uint64_t seen) {
  Verdicts verdicts;
  const auto known = id_of_.find(witness);
  if (known == id_of_.end() || bucket >= *plan_.bucket_count) return verdicts;
  if (plan_.items[known->second].bucket != bucket + 1) return verdicts;  // the plan has changed
  if (seen < last_[known->second]) return verdicts;
  const PlanBucket& state = plan_.buckets[bucket];
  if (state.waiting == 0 && state.split) return verdicts;
  Run(SplitBucket(plan_, bucket + 1), verdicts);
  return verdicts;
}

MultiHostRoot::Verdicts MultiHostRoot::Reject(const CallName& call, Error error) {
  Verdicts verdicts;
  const std::optional<Attendance> attendance = WhoHas(call);
  if (!attendance) return verdicts;
  // The rank that gave up may not have known for which ranks it waited.
  if (error.kind == ErrorKind::kTimeout && error.culprit < 0 && !attendance->missing.empty()) {
    error.message += ": waiting for rank(s) " + ListText(attendance->missing);
    error.culprit = attendance->missing.front();
  }
  pending_.erase(call);
  Emit({Decision::Failure(std::move(error)), {call}}, verdicts);
  rejected_[call] = decided_;
  Skip(call, verdicts);
  return verdicts;
}

MultiHostRoot::Verdicts MultiHostRoot::RanAlone(const CallName& call) {
  Verdicts verdicts;
  pending_.erase(call);
  rejected_.erase(call);  // all have submitted it since
  Skip(call, verdicts);
  return verdicts;
}

std::optional<Attendance> MultiHostRoot::WhoHas(const CallName& call) const {
  const auto pending = pending_.find(call);
  if (pending == pending_.end()) return std::nullopt;
  Attendance attendance;
  for (uint32_t m = 0; m < joined_.size(); ++m) {
    const bool here = pending->second.ready_set.Has(m);
    if (here || !joined_[m])
      (here ? attendance.ready : attendance.missing).push_back(global_ranks_[m]);
  }
  return attendance;
}

Attendance MultiHostRoot::WhoHasJoined() const {
  Attendance attendance;
  for (size_t m = 0; m < joined_.size(); ++m)
    (joined_[m] ? attendance.ready : attendance.missing).push_back(global_ranks_[m]);
  return attendance;
}

}  // namespace horoacc
