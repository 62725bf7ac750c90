#pragma once
// Mode S: every rank's kernels reduce a shard from all buffers to all, and streams wait for streams
// through words of memory. The host takes no part until the result is there.
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/host/stream_steps.h"
#include "execute/cuda/host/ticket.h"

namespace horoacc::cuda {

/// The words lie in the host's memory: a run that ends early writes those that its stream waits
/// for.
class StreamRun final : public GpuRun {
 public:
  StreamRun(Bucket bucket, std::vector<DeviceCall*> calls);
  ~StreamRun() override;
  StreamRun(const StreamRun&) = delete;
  StreamRun& operator=(const StreamRun&) = delete;

 private:
  enum class Step { kPack, kTurn, kReduced };
  using Word = std::atomic<uint32_t> GpuPeerWords::*;
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Status Enqueue(StreamStep step);
  [[nodiscard]] Status Tell(Word word);
  [[nodiscard]] Status Await(Word word);

  const Bucket bucket_;
  Ticket turn_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  uint32_t number_ = 0;  ///< of the window among the GPU group's
  GpuEvent reduced_;     ///< of the window that was enqueued
};

}  // namespace horoacc::cuda
