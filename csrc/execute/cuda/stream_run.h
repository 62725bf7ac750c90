#pragma once
// Mode S: every rank's kernels reduce a shard from all buffers to all, and streams wait for streams
// through words of memory. The host takes no part until the result is there.
#include "execute/cuda/bucket.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// The words lie in the host's memory: a run that ends early writes those that its stream waits
/// for.
class StreamRun final : public Execution {
 public:
  explicit StreamRun(Bucket bucket);
  ~StreamRun() override;
  StreamRun(const StreamRun&) = delete;
  StreamRun& operator=(const StreamRun&) = delete;
  bool Advance() override;
  [[nodiscard]] bool complete() const override { return done_; }
  [[nodiscard]] bool failed() const override { return !status_.ok(); }
  [[nodiscard]] Error failure() const override { return status_.error(); }

 private:
  using Word = std::atomic<uint32_t> TeamWords::*;
  [[nodiscard]] Status Enqueue();
  [[nodiscard]] Status Meet(Word word);
  [[nodiscard]] Result<bool> Turn();

  const Bucket bucket_;
  Team& team_;
  Watch watch_;
  size_t window_ = 0;
  uint32_t number_ = 0;  ///< of the window among the team's
  GpuEvent reduced_;     ///< of the window that was enqueued; null: none was
  bool done_ = false;
  Status status_;
};

}  // namespace horoacc::cuda
