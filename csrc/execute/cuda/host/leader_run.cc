#include "execute/cuda/host/leader_run.h"

namespace horoacc::cuda {

Status LeaderRun::Begin() {
  steps_ = {};
  HA_TRY(steps_.Go(*this));
  return {};
}

Result<bool> LeaderRun::Reduce() {
  HA_ASSIGN(const bool reduced, steps_.Go(*this));
  if (reduced)
    HA_TRY(group_.gpu().Call(&ha_cuda_plugin::wait, group_.stream(), group_.reduced_event()));
  return reduced;
}

Status LeaderRun::RecordPacked() {
  return group_.gpu().Call(&ha_cuda_plugin::record, group_.packed_event(group_.me()),
                           group_.stream());
}

bool LeaderRun::HasTold(uint32_t rank) const {
  return group_.info(rank).packed.load(std::memory_order_acquire) >= number_;
}

bool LeaderRun::HasResult() const {
  return group_.info(GpuGroup::kLeader).reduced.load(std::memory_order_acquire) >= number_;
}

Result<bool> LeaderRun::IsDone(void* event) {
  int done = 0;
  HA_TRY(group_.gpu().Call(&ha_cuda_plugin::is_done, event, &done));
  watch_.Set(done == 0);
  return done != 0;
}

Status LeaderRun::ReduceAll() {
  for (uint32_t r = 0; r < group_.ranks(); ++r)
    HA_TRY(group_.gpu().Call(&ha_cuda_plugin::wait, group_.stream(), group_.packed_event(r)));
  HA_TRY(bucket_.ReduceAll(window_));
  return group_.gpu().Call(&ha_cuda_plugin::record, group_.reduced_event(), group_.stream());
}

}  // namespace horoacc::cuda
