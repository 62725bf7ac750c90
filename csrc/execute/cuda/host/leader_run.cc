#include "execute/cuda/host/leader_run.h"

#include <utility>

namespace horoacc::cuda {

LeaderRun::LeaderRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : GpuRun(bucket.gpu_group(), std::move(calls)), bucket_(std::move(bucket)) {}

Result<bool> LeaderRun::Go() {
  switch (step_) {
    case Step::kPack:
      return Pack();
    case Step::kGather:
      return Gather();
    case Step::kReduce:
      return Reduce();
    default:
      return Await();
  }
}

Result<bool> LeaderRun::Pack() {
  if (window_ == 0) HA_TRY(AwaitTensors());
  number_ = gpu_group_.NextWindow();
  HA_TRY(bucket_.Pack(window_));
  HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::record, gpu_group_.packed_event(gpu_group_.me()),
                               gpu_group_.stream()));
  gpu_group_.info(gpu_group_.me()).packed.store(number_, std::memory_order_release);
  gpu_group_.RingOthers();
  gathered_ = 0;
  step_ = gpu_group_.me() == GpuGroup::kLeader ? Step::kGather : Step::kAwait;
  return true;
}

Result<bool> LeaderRun::IsDone(void* event) {
  int done = 0;
  HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::is_done, event, &done));
  watch_.Set(done == 0);
  return done != 0;
}

// An event may be asked for once its rank has said that it was recorded.
Result<bool> LeaderRun::Gather() {
  for (; gathered_ < gpu_group_.ranks(); ++gathered_) {
    if (gpu_group_.info(gathered_).packed.load(std::memory_order_acquire) < number_) return false;
    HA_ASSIGN(const bool done, IsDone(gpu_group_.packed_event(gathered_)));
    if (!done) return false;
  }
  for (uint32_t r = 0; r < gpu_group_.ranks(); ++r) {
    HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::wait, gpu_group_.stream(),
                                 gpu_group_.packed_event(r)));
  }
  HA_TRY(bucket_.ReduceAll(window_));
  HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::record, gpu_group_.reduced_event(),
                               gpu_group_.stream()));
  step_ = Step::kReduce;
  return true;
}

Result<bool> LeaderRun::Reduce() {
  HA_ASSIGN(const bool done, IsDone(gpu_group_.reduced_event()));
  if (!done) return false;
  gpu_group_.info(GpuGroup::kLeader).reduced.store(number_, std::memory_order_release);
  gpu_group_.RingOthers();
  step_ = Step::kAwait;
  return true;
}

Result<bool> LeaderRun::Await() {
  if (gpu_group_.info(GpuGroup::kLeader).reduced.load(std::memory_order_acquire) < number_)
    return false;
  HA_TRY(gpu_group_.gpu().Call(&ha_cuda_plugin::wait, gpu_group_.stream(),
                               gpu_group_.reduced_event()));
  HA_TRY(bucket_.Unpack(window_));
  step_ = Step::kPack;
  if (++window_ == bucket_.windows()) HA_TRY(Complete());
  return true;
}

}  // namespace horoacc::cuda
