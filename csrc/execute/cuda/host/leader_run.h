#pragma once
// Mode L: ranks on one GPU. Each packs into its buffer, one rank's kernels reduce from all to all.
#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/gpu_run.h"

namespace horoacc::cuda {

/// Neither a kernel nor a stream waits for another process: the leader's host asks the others'
/// events, and tells them once the result is there. So a rank that dies leaves nothing stuck.
class LeaderRun final : public GpuRun {
 public:
  LeaderRun(Bucket bucket, std::vector<DeviceCall*> calls);

 private:
  enum class Step { kPack, kGather, kReduce, kAwait };
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Result<bool> Pack();
  [[nodiscard]] Result<bool> Gather();
  [[nodiscard]] Result<bool> Reduce();
  [[nodiscard]] Result<bool> Await();
  [[nodiscard]] Result<bool> IsDone(void* event);

  const Bucket bucket_;
  Step step_ = Step::kPack;
  size_t window_ = 0;
  uint64_t number_ = 0;  ///< of the window among the GPU group's
  uint32_t gathered_ = 0;
};

}  // namespace horoacc::cuda
