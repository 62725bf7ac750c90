#include "negotiate/tree_root.h"

#include <utility>

namespace horoacc {

TreeRoot::TreeRoot(SetBoard& board, const SetContext& context, const Settings& settings)
    : board_(board),
      context_(context),
      decider_(board, context, settings),
      plan_memory_(PlanState::BytesFor(kNamedIds)),
      plan_(PlanState::Over(plan_memory_.data(), kNamedIds, settings.fusion_threshold)),
      last_(kIds),
      incarnations_(kNamedIds) {}

TreeRoot::Verdicts TreeRoot::Ready(TensorKey key, Error disagreement) {
  backlog_.push_back({key, std::move(disagreement), false});
  return Retry();
}

TreeRoot::Verdicts TreeRoot::Reject(TensorKey key, Error error) {
  backlog_.push_back({key, std::move(error), true});
  return Retry();
}

TreeRoot::Verdicts TreeRoot::Retry() {
  Verdicts verdicts;
  for (; !backlog_.empty() && decider_.HasSlots(); backlog_.pop_front()) {
    for (Decision& decision : Decide(backlog_.front())) verdicts.push_back(std::move(decision));
  }
  return verdicts;
}

TreeRoot::Verdicts TreeRoot::Decide(const Waiting& item) {
  const TensorKey key = item.key;
  if (item.rejected) {
    if (!board_.CloseGeneration(key.id, key.generation)) return {};
    last_[key.id] = key.generation;
    return Skip(key, item.error);
  }
  last_[key.id] = key.generation;
  Verdicts verdicts;
  if (key.id < kNamedIds) {
    const auto incarnation =
        static_cast<uint16_t>(board_.id(key.id).arrivals.load(std::memory_order_acquire) >> 48);
    if (std::exchange(incarnations_[key.id], incarnation) != incarnation) {
      // The id has gone to another name. What waited for nobody but the old one may run.
      const uint32_t bucket = plan_.items[key.id].bucket;
      ForgetItem(plan_, key.id);
      if (bucket != 0 && plan_.buckets[bucket - 1].waiting == plan_.buckets[bucket - 1].count)
        Run(SplitBucket(plan_, bucket), verdicts);
    }
  }
  if (item.error.kind != ErrorKind::kOk) {
    for (Decision& decision : Skip(key, item.error)) verdicts.push_back(std::move(decision));
    return verdicts;
  }
  const Row& row = board_.row(context_.me, key.id, key.generation);
  const bool fusable =
      key.id < kNamedIds && row.collective == static_cast<uint8_t>(Collective::kAllreduce);
  const ReadyItem ready{key.id, row.sequence, row.pause, BytesOf(board_, context_, key), fusable};
  for (const Bucket& bucket : TakeReady(plan_, {&ready, 1})) Run(bucket, verdicts);
  return verdicts;
}

TreeRoot::Verdicts TreeRoot::Skip(TensorKey key, const Error& error) {
  Verdicts verdicts = {ErrorDecision({&key, 1}, error)};
  if (key.id < kNamedIds) Run(SkipItem(plan_, key.id), verdicts);
  return verdicts;
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

std::vector<BucketMembers> TreeRoot::PlanChanges() {
  std::vector<BucketMembers> changes;
  if (std::exchange(told_version_, *plan_.version) == *plan_.version) return changes;
  told_.resize(*plan_.bucket_count);
  for (uint32_t index = 0; index < *plan_.bucket_count; ++index) {
    const PlanBucket& bucket = plan_.buckets[index];
    if (std::exchange(told_[index], bucket.version) == bucket.version) continue;
    const auto members = plan_.order.subspan(bucket.first, bucket.count);
    changes.push_back({index, {members.begin(), members.end()}});
  }
  return changes;
}

}  // namespace horoacc
