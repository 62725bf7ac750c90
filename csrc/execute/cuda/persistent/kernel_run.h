#pragma once
// Mode K: one launch for each kind of elements, on every rank, whose blocks wait for those of the
// others. The host takes no part until the result is there.
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/host/ticket.h"
#include "execute/cuda/persistent/group_kernels.h"

namespace horoacc::cuda {

/// A run that ends early ends the waits of its kernels.
class KernelRun final : public GpuRun {
 public:
  KernelRun(Bucket bucket, std::vector<DeviceCall*> calls);
  ~KernelRun() override;
  KernelRun(const KernelRun&) = delete;
  KernelRun& operator=(const KernelRun&) = delete;

 private:
  enum class Step { kPack, kTurn, kRenew, kReduced };
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Status Launch();
  [[nodiscard]] Status Finish();

  const Bucket bucket_;
  GroupKernels& kernels_;
  Ticket turn_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  size_t run_ = 0;    ///< of the window: the next to be launched
  GpuEvent reduced_;  ///< of the window, once all was launched
};

}  // namespace horoacc::cuda
