#pragma once
// Mode K: one launch for each kind of elements, on every rank, whose blocks wait for those of the
// others. The host takes no part until the result is there.
#include "execute/cuda/bucket.h"
#include "execute/cuda/team_kernels.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// A run that ends early ends the waits of its kernels.
class KernelRun final : public Execution {
 public:
  explicit KernelRun(Bucket bucket);
  ~KernelRun() override;
  KernelRun(const KernelRun&) = delete;
  KernelRun& operator=(const KernelRun&) = delete;
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return step_ == Step::kDone; }
  [[nodiscard]] bool failed() const override { return !status_.ok(); }
  [[nodiscard]] Error failure() const override { return status_.error(); }

 private:
  enum class Step { kPack, kLaunch, kRenew, kReduced, kDone };
  [[nodiscard]] Result<bool> Turn();
  [[nodiscard]] Status Launch();
  [[nodiscard]] Status Finish();

  const Bucket bucket_;
  Team& team_;
  TeamKernels& kernels_;
  Watch watch_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  size_t run_ = 0;    ///< of the window: the next to be launched
  GpuEvent reduced_;  ///< of the window, once all was launched
  Status status_;
};

}  // namespace horoacc::cuda
