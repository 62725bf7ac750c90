#include "execute/cuda/persistent/kernel_run.h"

#include <utility>

namespace horoacc::cuda {

KernelRun::KernelRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : GpuRun(bucket.gpu_group(), std::move(calls)),
      bucket_(std::move(bucket)),
      kernels_(*gpu_group_.kernels()),
      turn_(gpu_group_) {}

KernelRun::~KernelRun() {
  if (!complete()) kernels_.Abort();
}

Result<bool> KernelRun::Go() {
  switch (step_) {
    case Step::kPack:
      if (window_ == 0) HA_TRY(AwaitTensors());
      HA_TRY(bucket_.Pack(window_));
      run_ = 0;
      step_ = Step::kTurn;
      return true;
    case Step::kTurn:
      if (!HasCome(turn_)) return false;
      HA_TRY(Launch());
      return true;
    case Step::kRenew: {
      HA_ASSIGN(const bool renewed, kernels_.Renew());
      watch_.Set(!renewed);
      if (renewed) step_ = Step::kTurn;
      return renewed;
    }
    default: {
      HA_ASSIGN(const bool reduced, HasRun(reduced_));
      if (reduced) HA_TRY(Finish());
      return reduced;
    }
  }
}

Status KernelRun::Launch() {
  const std::vector<BucketRun>& runs = bucket_.runs(window_);
  for (; run_ < runs.size(); ++run_) {
    HA_ASSIGN(const bool launched, kernels_.Launch(runs[run_]));
    if (launched) continue;
    step_ = Step::kRenew;
    return {};
  }
  HA_ASSIGN(reduced_, gpu_group_.gpu().Record(gpu_group_.stream()));
  step_ = Step::kReduced;
  return {};
}

Status KernelRun::Finish() {
  HA_TRY(kernels_.Outcome());
  HA_TRY(bucket_.Unpack(window_));
  step_ = Step::kPack;
  if (++window_ < bucket_.windows()) return {};
  turn_.Pass();
  return Complete();
}

}  // namespace horoacc::cuda
