#pragma once
// Mode K: on every rank one launch for each kind of elements, whose blocks wait for those of the
// other ranks. The hosts take no part until the result is there.
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/persistent/group_kernels.h"

namespace horoacc::cuda {

/// A run that ends early ends the waits of its kernels.
class KernelRun final : public ModeRun {
 public:
  KernelRun(Bucket bucket, std::vector<DeviceCall*> calls);
  ~KernelRun() override;
  KernelRun(const KernelRun&) = delete;
  KernelRun& operator=(const KernelRun&) = delete;

 private:
  [[nodiscard]] Status EndPacking(Window& window) override { return RecordPacked(window); }
  [[nodiscard]] Result<bool> Launch(Window& window) override;
  [[nodiscard]] Result<bool> IsReduced(const Window& window) override;

  GroupKernels& kernels_;
  size_t run_ = 0;       ///< of the window that is being launched: the next
  bool renews_ = false;  ///< memory for its program is being made, with the other ranks
};

}  // namespace horoacc::cuda
