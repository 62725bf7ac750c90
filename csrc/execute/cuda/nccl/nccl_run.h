#pragma once
// NCCL reduces: each rank packs into its buffer, NCCL's kernels reduce it there, each unpacks.
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/host/ticket.h"
#include "execute/cuda/nccl/nccl_comm.h"

namespace horoacc::cuda {

/// Sums have NCCL's order, and its roundings. A run that ends early ends the waits of NCCL's
/// kernels, and with them the communicator.
class NcclRun final : public GpuRun {
 public:
  NcclRun(Bucket bucket, std::vector<DeviceCall*> calls);
  ~NcclRun() override;
  NcclRun(const NcclRun&) = delete;
  NcclRun& operator=(const NcclRun&) = delete;

 private:
  enum class Step { kPack, kTurn, kCalled, kReduced };
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Status Pack();
  [[nodiscard]] Result<bool> Called();
  [[nodiscard]] Result<bool> Reduced();
  /// Multiplies what is in the buffer, where that changes anything.
  [[nodiscard]] Status Multiply(bool before) const;

  const Bucket bucket_;
  NcclComm& comm_;
  Ticket turn_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  GpuEvent reduced_;
};

}  // namespace horoacc::cuda
