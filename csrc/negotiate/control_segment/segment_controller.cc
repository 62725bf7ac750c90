#include "negotiate/control_segment/segment_controller.h"

#include <algorithm>

namespace horoacc {

SegmentController::SegmentController(SetSegment& control, const SetContext& context,
                                     const Doorbells& doorbells, const Tuned& tuned,
                                     std::vector<int> global_ranks)
    : HostGroup(control, context, doorbells),
      decider_(control, context, tuned, global_ranks),
      global_ranks_(std::move(global_ranks)) {}

// Members that run already do not count: the call for which a caller waits may be a part of a
// bucket whose other part is complete, and that says nothing about the bucket's next round.
Status SegmentController::Unblock(std::span<const uint32_t> in_flight) {
  // Unnamed calls are never part of a bucket. Every waiting rank comes here: no lock for them.
  if (std::ranges::none_of(in_flight, [](uint32_t id) { return id < kNamedIds; })) return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  PlanState& plan = control_.plan();
  std::vector<std::pair<uint32_t, uint32_t>> touched;  // bucket, members of it submitted here
  for (const uint32_t id : in_flight) {
    const PlanItem& item = plan.items[id];
    if (item.bucket == 0) continue;
    const uint64_t open = GenerationOf(id) + 1;
    const Row& row = control_.row(context_.me, id, open);
    if (!item.waiting && row.generation.load(std::memory_order_acquire) != open) continue;
    const auto found =
        std::ranges::find(touched, item.bucket, &std::pair<uint32_t, uint32_t>::first);
    if (found == touched.end()) {
      touched.emplace_back(item.bucket, 1);
    } else {
      ++found->second;
    }
  }
  for (const auto& [bucket, members] : touched) {
    const PlanBucket& state = plan.buckets[bucket - 1];
    // Whole here: others complete it. (A bucket that lost a member may be whole and unstarted.)
    if (members == state.count && state.waiting < state.count) continue;
    if (state.waiting == 0 && state.split) continue;
    // The caller goes on waiting and asks again.
    if (control_.header().backlog > 0 || !HasRoom()) return {};
    if (const Bucket ready = SplitBucket(plan, bucket); !ready.empty()) PublishRun(ready);
  }
  return {};
}

Status SegmentController::Pump() {
  if (control_.header().starved.load(std::memory_order_acquire) == 0 && rejections_.empty())
    return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  Decide({});
  for (; !rejections_.empty() && HasRoom(); rejections_.pop_front())
    RejectNow(rejections_.front().first, rejections_.front().second);
  return {};
}

Status SegmentController::Reject(TensorKey tensor, const Error& error) {
  rejections_.emplace_back(tensor, error);
  return Pump();
}

void SegmentController::RejectNow(TensorKey key, const Error& error) {
  if (!control_.CloseGeneration(key.id, key.generation)) return;
  PublishError(key, error);
}

Status SegmentController::End(SetEnd end) {
  const SetSegment::Guard guard(control_);
  HA_TRY(Status(guard.status()));
  SetEnd none;
  control_.header().end.compare_exchange_strong(none, end);
  return {};
}

Result<std::optional<Attendance>> SegmentController::WhoHas(std::optional<TensorKey> tensor) {
  Attendance attendance;
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    const bool has_it = tensor && control_.HasSubmitted(r, *tensor);
    if (!has_it && control_.HasJoined(r)) continue;  // no rank waits for it
    (has_it ? attendance.ready : attendance.missing).push_back(global_ranks_[r]);
  }
  return std::optional(std::move(attendance));
}

void SegmentController::OnReady(TensorKey key, bool partial) {
  const Error refusal = decider_.Refusal(key, partial ? RanksOf(control_, key) : context_.present);
  if (refusal.kind != ErrorKind::kOk) return PublishError(key, refusal);
  if (partial) {
    // Its bucket goes on without it: ranks that take part in the others may not in this one.
    Publish(decider_.RunPartial(key), {&key, 1});
    if (const Bucket rest = SkipItem(control_.plan(), key.id); !rest.empty()) PublishRun(rest);
    return;
  }
  const ReadyItem ready = decider_.ItemOf(key);
  for (const Bucket& bucket : TakeReady(control_.plan(), {&ready, 1})) PublishRun(bucket);
}

// Once all ranks have joined, and all their calls are decided, they submit again.
bool SegmentController::OnIdle() {
  SetHeader& header = control_.header();
  if (header.joined.load(std::memory_order_relaxed) < context_.ranks) return true;
  PlanState& plan = control_.plan();
  for (uint32_t index = 1; index <= *plan.bucket_count; ++index) {
    if (plan.buckets[index - 1].waiting == 0) continue;
    if (!HasRoom()) return false;
    PublishRun(SplitBucket(plan, index));
  }
  if (!HasRoom()) return false;
  Decision join;
  join.kind = Decision::Kind::kJoin;
  join.last_joined = global_ranks_[header.last_joined];
  for (uint32_t r = 0; r < context_.ranks; ++r)
    join.unnamed = std::max(join.unnamed, control_.cursor(r).unnamed);
  ResetJoins();
  Publish(join, {});
  return true;
}

void SegmentController::PublishRun(const Bucket& bucket) {
  std::vector<TensorKey> keys;
  for (const uint32_t id : bucket) keys.push_back({id, GenerationOf(id)});
  for (const Decision& decision : decider_.Run(keys)) Publish(decision, keys);
}

void SegmentController::PublishError(TensorKey key, const Error& error) {
  Publish(ErrorDecision({&key, 1}, error), {&key, 1});
  if (const Bucket rest = SkipItem(control_.plan(), key.id); !rest.empty()) PublishRun(rest);
}

}  // namespace horoacc
