#pragma once
// Mode L, for ranks on one GPU: each packs into its buffer, and one rank's kernels reduce from all
// buffers to all.
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/host/leader_steps.h"

namespace horoacc::cuda {

/// No kernel and no stream waits for another process: each rank's host asks its own events, and
/// tells the others how far its GPU is. So the death of a rank leaves nothing stuck.
class LeaderRun final : public ModeRun {
 public:
  LeaderRun(Bucket bucket, std::vector<DeviceCall*> calls)
      : ModeRun(std::move(bucket), std::move(calls), Waits::kHosts) {}

 private:
  /// A window, as LeaderWindow sees it.
  struct Host;
  [[nodiscard]] Status EndPacking(Window& window) override { return RecordPacked(window); }
  [[nodiscard]] Result<bool> Launch(Window& window) override;
  [[nodiscard]] Result<bool> IsReduced(const Window& window) override;

  LeaderWindow steps_;  ///< of the next window to be launched
};

}  // namespace horoacc::cuda
