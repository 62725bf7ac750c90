#pragma once
// Mode S: every rank's kernels reduce a shard from all buffers to all, and streams wait for other
// ranks' streams through words of memory. The hosts take no part until the result is there.
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/host/stream_steps.h"

namespace horoacc::cuda {

/// The words lie in the host's memory: a run that ends early writes the words that its own stream
/// waits for.
class StreamRun final : public ModeRun {
 public:
  StreamRun(Bucket bucket, std::vector<DeviceCall*> calls)
      : ModeRun(std::move(bucket), std::move(calls), Waits::kStreams) {}
  ~StreamRun() override;
  StreamRun(const StreamRun&) = delete;
  StreamRun& operator=(const StreamRun&) = delete;

 private:
  using Words = std::atomic<uint32_t> (GpuPeerWords::*)[WindowLine::kSlots];
  [[nodiscard]] Status EndPacking(Window& window) override;
  [[nodiscard]] Result<bool> Launch(Window& window) override;
  [[nodiscard]] Status Enqueue(StreamStep step, const Window& window) const;
  [[nodiscard]] Status Tell(Words words, uint64_t number, void* stream) const;
  [[nodiscard]] Status Await(Words words, uint64_t number) const;
};

}  // namespace horoacc::cuda
