#include "execute/cuda/host/leader_run.h"

namespace horoacc::cuda {

Status LeaderRun::Begin() {
  steps_ = {};
  HA_TRY(steps_.Go(*this));
  return {};
}

Status LeaderRun::RecordPacked() {
  HA_ASSIGN(ended_, group_.Record());
  return {};
}

bool LeaderRun::HasTold(uint32_t rank) const {
  return group_.info(rank).packed.load(std::memory_order_acquire) >= number_;
}

bool LeaderRun::HasResult() const {
  return group_.info(GpuGroup::kLeader).reduced.load(std::memory_order_acquire) >= number_;
}

Status LeaderRun::ReduceAll() {
  HA_TRY(bucket_.ReduceAll(window_));
  HA_ASSIGN(ended_, group_.Record());
  return {};
}

}  // namespace horoacc::cuda
