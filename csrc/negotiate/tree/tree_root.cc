#include "negotiate/tree/tree_root.h"

#include <utility>

namespace horoacc {

TreeRoot::TreeRoot(SetSegment& control, const SetContext& context, const Settings& settings,
                   std::vector<int> global_ranks)
    : control_(control),
      context_(context),
      decider_(control, context, settings, std::move(global_ranks)),
      plan_memory_(PlanState::BytesFor(kNamedIds)),
      plan_(PlanState::Over(plan_memory_.data(), kNamedIds, settings.fusion_threshold)),
      last_(kIds),
      id_versions_(kNamedIds) {}

TreeRoot::Verdicts TreeRoot::Ready(TensorKey key) {
  backlog_.push_back({.kind = Waiting::Kind::kReady, .key = key});
  return Retry();
}

TreeRoot::Verdicts TreeRoot::Reject(TensorKey key, Error error) {
  backlog_.push_back({.kind = Waiting::Kind::kRejected, .key = key, .error = std::move(error)});
  return Retry();
}

TreeRoot::Verdicts TreeRoot::Joined(int last, uint64_t unnamed) {
  backlog_.push_back({.kind = Waiting::Kind::kJoined, .last_joined = last, .unnamed = unnamed});
  return Retry();
}

TreeRoot::Verdicts TreeRoot::Retry() {
  Verdicts verdicts;
  for (; !backlog_.empty() && decider_.HasSlots(); backlog_.pop_front()) {
    if (!Decide(backlog_.front(), verdicts)) break;
  }
  return verdicts;
}

bool TreeRoot::Decide(const Waiting& item, Verdicts& verdicts) {
  switch (item.kind) {
    case Waiting::Kind::kReady:
      return DecideReady(item.key, verdicts);
    case Waiting::Kind::kRejected:
      if (!control_.CloseGeneration(item.key.id, item.key.generation)) return true;
      last_[item.key.id] = item.key.generation;
      Skip(item.key, ErrorDecision({&item.key, 1}, item.error), verdicts);
      return true;
    case Waiting::Kind::kJoined:
      return EndJoin(item, verdicts);
  }
  return true;
}

bool TreeRoot::DecideReady(TensorKey key, Verdicts& verdicts) {
  IdEntry& entry = control_.id(key.id);
  const Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  // The last of all ranks would have opened the next generation: those that are missing have
  // joined.
  const bool partial = seen.open() == key.generation;
  if (partial) {
    if (AnyLags(key)) return false;
    entry.last_decision.store(kUndecided, std::memory_order_relaxed);
    entry.arrivals.store(seen.Closed(), std::memory_order_release);
  }
  last_[key.id] = key.generation;
  if (key.id < kNamedIds &&
      std::exchange(id_versions_[key.id], seen.id_version()) != seen.id_version()) {
    // The id has gone to another name. Calls that waited only for the old one may run.
    const uint32_t bucket = plan_.items[key.id].bucket;
    ForgetItem(plan_, key.id);
    if (bucket != 0 && plan_.buckets[bucket - 1].waiting == plan_.buckets[bucket - 1].count)
      Run(SplitBucket(plan_, bucket), verdicts);
  }
  const Error refusal = decider_.Refusal(key, partial ? RanksOf(control_, key) : context_.present);
  if (refusal.kind != ErrorKind::kOk) {
    Skip(key, ErrorDecision({&key, 1}, refusal), verdicts);
    return true;
  }
  if (partial) {
    Skip(key, decider_.RunPartial(key), verdicts);
    return true;
  }
  const ReadyItem ready = decider_.ItemOf(key);
  for (const Bucket& bucket : TakeReady(plan_, {&ready, 1})) Run(bucket, verdicts);
  return true;
}

bool TreeRoot::AnyLags(TensorKey key) const {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    if (!control_.HasSubmitted(r, key) && control_.Lags(r, key)) return true;
  }
  return false;
}

bool TreeRoot::EndJoin(const Waiting& item, Verdicts& verdicts) {
  for (uint32_t index = 1; index <= *plan_.bucket_count; ++index) {
    if (plan_.buckets[index - 1].waiting == 0) continue;
    if (!decider_.HasSlots()) return false;
    Run(SplitBucket(plan_, index), verdicts);
  }
  Decision join;
  join.kind = Decision::Kind::kJoin;
  join.last_joined = item.last_joined;
  join.unnamed = item.unnamed;
  verdicts.push_back(std::move(join));
  return true;
}

// Decides a call by itself; its bucket goes on without it.
void TreeRoot::Skip(TensorKey key, Decision decision, Verdicts& verdicts) {
  verdicts.push_back(std::move(decision));
  if (key.id < kNamedIds) Run(SkipItem(plan_, key.id), verdicts);
}

TreeRoot::Verdicts TreeRoot::Split(uint32_t bucket, TensorKey witness) {
  if (witness.id >= kNamedIds || bucket >= *plan_.bucket_count) return {};
  const PlanItem& item = plan_.items[witness.id];
  if (item.bucket != bucket + 1) return {};  // the plan has changed
  const uint64_t last = last_[witness.id];
  if (last > witness.generation || (last == witness.generation && !item.waiting)) return {};
  const PlanBucket& state = plan_.buckets[bucket];
  if (state.waiting == 0 && state.split) return {};
  if (!decider_.HasSlots()) return {};  // the rank goes on waiting and asks again
  Verdicts verdicts;
  Run(SplitBucket(plan_, bucket + 1), verdicts);
  return verdicts;
}

void TreeRoot::Run(const Bucket& ids, Verdicts& verdicts) {
  if (ids.empty()) return;
  std::vector<TensorKey> keys;
  for (const uint32_t id : ids) keys.push_back({id, last_[id]});
  for (Decision& decision : decider_.Run(keys)) verdicts.push_back(std::move(decision));
}

}  // namespace horoacc
