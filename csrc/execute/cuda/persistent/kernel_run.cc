#include "execute/cuda/persistent/kernel_run.h"

#include <utility>

namespace horoacc::cuda {

KernelRun::KernelRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : ModeRun(std::move(bucket), std::move(calls), Waits::kStreams), kernels_(*group_.kernels()) {}

KernelRun::~KernelRun() {
  if (!complete()) kernels_.Abort();
}

Status KernelRun::Begin() {
  run_ = 0;
  return {};
}

Result<bool> KernelRun::Reduce() {
  const std::vector<BucketRun>& runs = bucket_.runs(window_);
  while (run_ < runs.size()) {
    if (renews_) {
      HA_ASSIGN(const bool renewed, kernels_.Renew());
      watch_.Set(!renewed);
      if (!renewed) return false;
    }
    HA_ASSIGN(const bool launched, kernels_.Launch(runs[run_]));
    renews_ = !launched;
    if (launched) ++run_;
  }
  if (!reduced_) {
    HA_ASSIGN(reduced_, group_.Record());
  }
  HA_ASSIGN(const bool reduced, HasRun(reduced_));
  if (reduced) HA_TRY(kernels_.Outcome());
  return reduced;
}

}  // namespace horoacc::cuda
