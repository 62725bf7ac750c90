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
  [[nodiscard]] Status Begin() override;
  [[nodiscard]] Result<bool> Reduce() override;

  GroupKernels& kernels_;
  size_t run_ = 0;       ///< of the window: the next to be launched
  bool renews_ = false;  ///< memory for its program is being made, with the other ranks
};

}  // namespace horoacc::cuda
