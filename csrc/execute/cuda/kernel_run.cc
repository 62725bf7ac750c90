#include "execute/cuda/kernel_run.h"

#include <utility>

namespace horoacc::cuda {

KernelRun::KernelRun(Bucket bucket)
    : bucket_(std::move(bucket)),
      team_(bucket_.team()),
      kernels_(*team_.kernels()),
      watch_(team_.polling()) {}

// The tensors stay the stream's until it is through with them. A GPU that refuses has failed
// before.
KernelRun::~KernelRun() {
  if (step_ == Step::kDone) return;
  kernels_.Abort();
  static_cast<void>(bucket_.Land());
}

bool KernelRun::Advance() {
  if (step_ == Step::kDone || failed()) return false;
  Result<bool> moved = Turn();
  if (moved.ok()) return moved.value();
  status_ = std::move(moved.error());
  return false;
}

Result<bool> KernelRun::Turn() {
  switch (step_) {
    case Step::kPack:
      if (window_ == 0) HA_TRY(bucket_.AwaitTensors());
      HA_TRY(bucket_.Pack(window_));
      run_ = 0;
      step_ = Step::kLaunch;
      return true;
    case Step::kLaunch:
      HA_TRY(Launch());
      return true;
    case Step::kRenew: {
      HA_ASSIGN(const bool renewed, kernels_.Renew());
      watch_.Set(!renewed);
      if (renewed) step_ = Step::kLaunch;
      return renewed;
    }
    default: {
      HA_ASSIGN(const bool reduced, team_.gpu().IsDone(reduced_));
      watch_.Set(!reduced);
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
  HA_ASSIGN(reduced_, team_.gpu().Record(team_.stream()));
  step_ = Step::kReduced;
  return {};
}

Status KernelRun::Finish() {
  HA_TRY(kernels_.Outcome());
  HA_TRY(bucket_.Unpack(window_));
  step_ = Step::kPack;
  if (++window_ < bucket_.windows()) return {};
  HA_TRY(bucket_.Land());
  step_ = Step::kDone;
  return {};
}

}  // namespace horoacc::cuda
