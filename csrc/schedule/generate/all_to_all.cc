#include "schedule/generate/all_to_all.h"

namespace horoacc::schedule {

DirectAllToAll::DirectAllToAll(uint32_t ranks)
    : Schedule({.goal = Goal::kAllToAll,
                .ranks = ranks,
                .lanes = 2,
                .chunks = ranks,
                .hosts_alike = true}) {}

uint32_t DirectAllToAll::steps(uint32_t, uint32_t lane) const {
  return lane == 0 ? facts().ranks - 1 : facts().ranks;
}

Step DirectAllToAll::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  const uint32_t ranks = facts().ranks;
  if (lane == 1 && k == 0) return CopyThrough(rank, 1, 0);
  Step step;
  if (lane == 0) {
    step.op = Op::kSend;
    step.sends = 1;
    step.src = Buffer::kInput;
    step.peer[0] = step.src_chunk = (rank + 1 + k) % ranks;
  } else {
    step.op = Op::kRecv;
    step.receives = 1;
    step.dst = Buffer::kOutput;
    step.peer[0] = step.dst_chunk = (rank + ranks - k) % ranks;
  }
  return step;
}

}  // namespace horoacc::schedule
