#pragma once
// NCCL reduces: each rank packs into its buffer, NCCL's kernels reduce it there, each unpacks.
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/nccl/nccl_comm.h"

namespace horoacc::cuda {

/// Sums have NCCL's order and its roundings. A run that ends early aborts the communicator, which
/// ends the waits of NCCL's kernels.
class NcclRun final : public ModeRun {
 public:
  NcclRun(Bucket bucket, std::vector<DeviceCall*> calls);
  ~NcclRun() override;
  NcclRun(const NcclRun&) = delete;
  NcclRun& operator=(const NcclRun&) = delete;

 private:
  [[nodiscard]] Status EndPacking(Window& window) override;
  [[nodiscard]] Result<bool> Launch(Window& window) override;
  [[nodiscard]] Result<bool> IsReduced(const Window& window) override;
  /// Multiplies the buffer by the factors from before or behind the sum, if they are not 1.
  [[nodiscard]] Status Multiply(const Window& window, bool before) const;

  NcclComm& comm_;
  bool called_ = false;  ///< NCCL's calls for the window that is being launched were made
};

}  // namespace horoacc::cuda
