#include "execute/cuda/persistent/kernel_run.h"

#include <utility>

namespace horoacc::cuda {

KernelRun::KernelRun(Bucket bucket, std::vector<DeviceCall*> calls)
    : ModeRun(std::move(bucket), std::move(calls), Waits::kStreams), kernels_(*group_.kernels()) {}

KernelRun::~KernelRun() {
  if (!complete()) kernels_.Abort();
}

Result<bool> KernelRun::Launch(Window& window) {
  HA_TRY(AwaitPacked(window));
  const std::vector<BucketRun>& runs = bucket_.runs(window.index);
  while (run_ < runs.size()) {
    if (renews_) {
      HA_ASSIGN(const bool renewed, kernels_.Renew());
      if (!renewed) {
        Poll();
        return false;
      }
    }
    HA_ASSIGN(const bool launched, kernels_.Launch(runs[run_]));
    renews_ = !launched;
    if (launched) ++run_;
  }
  run_ = 0;
  HA_ASSIGN(window.reduced, group_.RecordReduced());
  return true;
}

Result<bool> KernelRun::IsReduced(const Window& window) {
  HA_ASSIGN(const bool reduced, HasRun(window.reduced));
  if (reduced) HA_TRY(kernels_.Outcome());
  return reduced;
}

}  // namespace horoacc::cuda
