#include "execute/cuda/host/device_run.h"

#include <utility>

namespace horoacc::cuda {

bool DeviceRun::Advance() {
  if (step_ == Step::kRun) return inner_ && inner_->Advance();
  if (step_ == Step::kRefused || failed()) return false;
  Result<bool> moved = step_ == Step::kAgree ? Agree() : CopyToHost();
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

bool DeviceRun::OnGpusOfTheGroup() const {
  for (uint32_t r = 0; r < parts_.gpu_group->ranks(); ++r) {
    if (parts_.devices[r] != parts_.gpu_group->device(r)) return false;
  }
  return true;
}

Result<bool> DeviceRun::Agree() {
  GpuMode mode = GpuMode::kCpuReduce;
  if (parts_.gpu_group) {
    bool moved = false;
    if (parts_.hosts) {
      HA_ASSIGN(moved, parts_.hosts->Advance());
    }
    if (!parts_.gpu_group->agreed()) return parts_.gpu_group->Advance() || moved;
    if (parts_.hosts && !parts_.hosts->done()) return moved;
    const Result<GpuMode>& agreed = *parts_.gpu_group->agreed();
    if (!agreed.ok()) {
      refusal_ = agreed.error();
      step_ = Step::kRefused;
      return true;
    }
    if (agreed.value() != GpuMode::kCpuReduce && OnGpusOfTheGroup()) {
      const std::optional<GpuMode> chosen = parts_.mode();
      if (!chosen) return false;
      mode = *chosen;
    }
  }
  if (mode != GpuMode::kCpuReduce) {
    Status status;
    inner_ = parts_.on_gpus(mode, status);
    HA_TRY(std::move(status));
    step_ = Step::kRun;
    return true;
  }
  for (DeviceCall* call : parts_.calls) {
    HA_ASSIGN(const uint64_t bytes, call->CopyToHost());
    parts_.bytes_to_host->fetch_add(bytes, std::memory_order_relaxed);
  }
  step_ = Step::kCopy;
  return true;
}

Result<bool> DeviceRun::CopyToHost() {
  for (DeviceCall* call : parts_.calls) {
    if (parts_.pipelined) break;
    HA_ASSIGN(const bool there, call->AreInputsOnHost());
    watch_.Set(!there);
    if (!there) return false;
  }
  Status status;
  inner_ = parts_.on_host(status);
  HA_TRY(std::move(status));
  step_ = Step::kRun;
  return true;
}

}  // namespace horoacc::cuda
