#pragma once
// Mode L: ranks on one GPU. Each packs into its buffer, one rank's kernels reduce from all to all.
#include "execute/cuda/bucket.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// Neither a kernel nor a stream waits for another process: the leader's host asks the others'
/// events, and tells them once the result is there. So a rank that dies leaves nothing stuck.
class LeaderRun final : public Execution {
 public:
  explicit LeaderRun(Bucket bucket);
  ~LeaderRun() override;
  LeaderRun(const LeaderRun&) = delete;
  LeaderRun& operator=(const LeaderRun&) = delete;
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return step_ == Step::kDone; }
  [[nodiscard]] bool failed() const override { return !status_.ok(); }
  [[nodiscard]] Error failure() const override { return status_.error(); }

 private:
  enum class Step { kPack, kGather, kReduce, kAwait, kDone };
  [[nodiscard]] Result<bool> Turn();
  [[nodiscard]] Result<bool> Pack();
  [[nodiscard]] Result<bool> Gather();
  [[nodiscard]] Result<bool> Reduce();
  [[nodiscard]] Result<bool> Await();
  [[nodiscard]] Result<bool> IsDone(void* event);

  const Bucket bucket_;
  Team& team_;
  Watch watch_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  uint64_t number_ = 0;  ///< of the window among the team's
  uint32_t gathered_ = 0;
  Status status_;
};

}  // namespace horoacc::cuda
