#include "execute/cuda/host/gpu_run.h"

#include <utility>

namespace horoacc::cuda {

GpuRun::GpuRun(GpuGroup& gpu_group, std::vector<DeviceCall*> calls)
    : gpu_group_(gpu_group), watch_(gpu_group.polling()), calls_(std::move(calls)) {}

// A GPU that refuses has failed before.
GpuRun::~GpuRun() {
  if (!done_) static_cast<void>(Land());
}

bool GpuRun::Advance() {
  if (done_ || failed()) return false;
  Result<bool> moved = Go();
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

Status GpuRun::AwaitTensors() const {
  for (const DeviceCall* call : calls_)
    HA_TRY(gpu_group_.gpu().Wait(gpu_group_.stream(), call->ready()));
  return {};
}

Result<bool> GpuRun::HasRun(const GpuEvent& event) {
  HA_ASSIGN(const bool run, gpu_group_.gpu().IsDone(event));
  watch_.Set(!run);
  return run;
}

// Other sets ring nobody of this one.
bool GpuRun::HasCome(Ticket& turn) {
  const bool come = turn.HasCome();
  watch_.Set(!come);
  return come;
}

Status GpuRun::Land() const {
  HA_ASSIGN(const GpuEvent landed, gpu_group_.gpu().Record(gpu_group_.stream()));
  for (DeviceCall* call : calls_) call->LandedOnGpu(landed);
  return {};
}

Status GpuRun::Complete() {
  HA_TRY(Land());
  done_ = true;
  return {};
}

}  // namespace horoacc::cuda
