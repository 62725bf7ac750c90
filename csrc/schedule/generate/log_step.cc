#include "schedule/generate/log_step.h"

#include <algorithm>
#include <bit>

namespace horoacc::schedule {
namespace {

uint32_t RoundsFor(uint32_t ranks) { return static_cast<uint32_t>(std::bit_width(ranks - 1)); }

// The number of chunks that a rank sends in round i.
uint16_t CountOf(uint32_t ranks, uint32_t i) {
  return static_cast<uint16_t>(std::min(1u << i, ranks - (1u << i)));
}

}  // namespace

LogAllGather::LogAllGather(uint32_t ranks)
    : Schedule({.goal = Goal::kAllGather, .ranks = ranks, .chunks = ranks, .hosts_alike = true}),
      rounds_(RoundsFor(ranks)) {}

uint32_t LogAllGather::steps(uint32_t, uint32_t) const { return 1 + 2 * rounds_; }

Step LogAllGather::step(uint32_t rank, uint32_t, uint32_t k) const {
  if (k == 0) return CopyThrough(rank, 1, 0);
  const uint32_t ranks = facts().ranks;
  const uint32_t i = (k - 1) / 2;
  const uint32_t ahead = (rank + (1u << i)) % ranks;
  Step step;
  step.count = CountOf(ranks, i);
  if (k % 2 == 1) {
    step.op = Op::kSend;
    step.sends = 1;
    step.peer[0] = (rank + ranks - (1u << i)) % ranks;
    step.src = Buffer::kOutput;
    step.src_chunk = rank;
  } else {
    step.op = Op::kRecv;
    step.receives = 1;
    step.peer[0] = ahead;
    step.dst = Buffer::kOutput;
    step.dst_chunk = ahead;
  }
  return step;
}

LogReduceScatter::LogReduceScatter(uint32_t ranks)
    : Schedule(
          {.goal = Goal::kReduceScatter, .ranks = ranks, .chunks = ranks, .hosts_alike = true}),
      rounds_(RoundsFor(ranks)) {}

uint32_t LogReduceScatter::steps(uint32_t, uint32_t) const { return 1 + 2 * rounds_; }

Step LogReduceScatter::step(uint32_t rank, uint32_t, uint32_t k) const {
  const uint32_t ranks = facts().ranks;
  if (ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  const uint32_t last = rounds_ - 1;  // the round of the longest distance comes first
  Step step;
  if (k == 0) {
    step.op = Op::kCopy;
    step.flags = kPrescaleOwn;
    step.count = static_cast<uint16_t>(1u << last);
    step.src = Buffer::kInput;
    step.dst = Buffer::kScratch;
    step.src_chunk = step.dst_chunk = rank;
    return step;
  }
  const uint32_t i = last - (k - 1) / 2;
  step.count = CountOf(ranks, i);
  if (k % 2 == 1) {
    step.op = Op::kSend;
    step.sends = 1;
    step.peer[0] = step.src_chunk = (rank + (1u << i)) % ranks;
    // The first message has no sums in it yet.
    step.src = i == last ? Buffer::kInput : Buffer::kScratch;
    step.flags = i == last ? kPrescaleOwn : 0;
  } else {
    step.op = Op::kRecvReduce;
    step.receives = 1;
    step.peer[0] = (rank + ranks - (1u << i)) % ranks;
    step.src = Buffer::kScratch;
    step.dst = i == 0 ? Buffer::kOutput : Buffer::kScratch;
    step.flags = i == 0 ? kPostscale : 0;
    step.src_chunk = step.dst_chunk = rank;
  }
  return step;
}

}  // namespace horoacc::schedule
