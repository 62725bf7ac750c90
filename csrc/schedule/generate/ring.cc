#include "schedule/generate/ring.h"

#include <algorithm>

namespace horoacc::schedule {
namespace {

// The k-th of the chunks below `shards` in the order begin-1, begin-2, ..., 0, shards-1, ...
uint32_t Descending(uint32_t begin, uint32_t shards, uint32_t k) {
  const uint32_t below = std::min(begin, shards);
  return k < below ? below - 1 - k : shards - 1 - (k - below);
}

// The step of a member `hops` behind a chunk's start; the chunk travels n - 1 hops.
Step Travel(uint32_t n, uint32_t i, uint32_t chunk, uint32_t hops) {
  Step step;
  step.src_chunk = step.dst_chunk = chunk;
  if (hops > 0) step.peer[step.receives++] = (i + n - 1) % n;
  if (hops < n - 1) step.peer[step.receives + step.sends++] = (i + 1) % n;
  return step;
}

}  // namespace

Step RingReduceScatterStep(uint32_t n, uint32_t i, uint32_t shards, uint32_t k,
                           const Operand& operand) {
  const uint32_t chunk = Descending(i, shards, k);
  const uint32_t hops = (i + n - 1 - chunk) % n;
  Step step = Travel(n, i, chunk, hops);
  step.src = operand.own;
  step.flags = operand.load;
  step.op = hops == 0 ? Op::kSend : Op::kRecvReduceSend;
  if (hops == n - 1) {
    step.op = Op::kRecvReduce;
    step.dst = Buffer::kOutput;
    step.flags |= operand.done;
  }
  return step;
}

Step RingAllGatherStep(uint32_t n, uint32_t i, uint32_t shards, uint32_t k) {
  const uint32_t chunk = Descending(i + 1, shards, k);
  const uint32_t hops = (i + n - chunk) % n;
  Step step = Travel(n, i, chunk, hops);
  step.op = hops == 0 ? Op::kSend : hops == n - 1 ? Op::kRecv : Op::kRecvCopySend;
  if (hops == 0)
    step.src = Buffer::kOutput;
  else
    step.dst = Buffer::kOutput;
  return step;
}

Step RingAllreduceStep(uint32_t n, uint32_t i, uint32_t k, const Operand& operand) {
  if (k >= n) return RingAllGatherStep(n, i, n, k - n + 1);
  Step step = RingReduceScatterStep(n, i, n, k, operand);
  if (k == n - 1) {
    step.op = Op::kRecvReduceCopySend;
    step.sends = 1;
    step.peer[1] = (i + 1) % n;
  }
  return step;
}

RingAllreduce::RingAllreduce(uint32_t ranks)
    : Schedule({.goal = Goal::kAllreduce, .ranks = ranks, .chunks = ranks, .hosts_alike = true}) {}

uint32_t RingAllreduce::steps(uint32_t, uint32_t) const { return 2 * facts().ranks - 1; }

Step RingAllreduce::step(uint32_t rank, uint32_t, uint32_t k) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  return RingAllreduceStep(facts().ranks, rank, k, {});
}

RingReduceScatter::RingReduceScatter(uint32_t ranks)
    : Schedule(
          {.goal = Goal::kReduceScatter, .ranks = ranks, .chunks = ranks, .hosts_alike = true}) {}

uint32_t RingReduceScatter::steps(uint32_t, uint32_t) const { return facts().ranks; }

Step RingReduceScatter::step(uint32_t rank, uint32_t, uint32_t k) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  return RingReduceScatterStep(facts().ranks, rank, facts().ranks, k, {});
}

RingAllGather::RingAllGather(uint32_t ranks)
    : Schedule({.goal = Goal::kAllGather, .ranks = ranks, .chunks = ranks, .hosts_alike = true}) {}

uint32_t RingAllGather::steps(uint32_t, uint32_t) const {
  return facts().ranks == 1 ? 1 : facts().ranks + 1;
}

Step RingAllGather::step(uint32_t rank, uint32_t, uint32_t k) const {
  if (k == 0) return CopyThrough(rank, 1, 0);
  return RingAllGatherStep(facts().ranks, rank, facts().ranks, k - 1);
}

}  // namespace horoacc::schedule
