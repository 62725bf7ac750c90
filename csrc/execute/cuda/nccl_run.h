#pragma once
// NCCL reduces: each rank packs into its buffer, NCCL's kernels reduce it there, each unpacks.
#include "execute/cuda/bucket.h"
#include "execute/cuda/nccl_comm.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// Sums have NCCL's order, and its roundings. A run that ends early ends the waits of NCCL's
/// kernels, and with them the communicator.
class NcclRun final : public Execution {
 public:
  explicit NcclRun(Bucket bucket);
  ~NcclRun() override;
  NcclRun(const NcclRun&) = delete;
  NcclRun& operator=(const NcclRun&) = delete;
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return step_ == Step::kDone; }
  [[nodiscard]] bool failed() const override { return !status_.ok(); }
  [[nodiscard]] Error failure() const override { return status_.error(); }

 private:
  enum class Step { kPack, kCalled, kReduced, kDone };
  [[nodiscard]] Result<bool> Turn();
  [[nodiscard]] Status Begin();
  [[nodiscard]] Status Finish();
  /// Multiplies what is in the buffer, where that changes anything.
  [[nodiscard]] Status Multiply(bool before) const;

  const Bucket bucket_;
  Team& team_;
  NcclComm& comm_;
  Watch watch_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  GpuEvent reduced_;
  Status status_;
};

}  // namespace horoacc::cuda
