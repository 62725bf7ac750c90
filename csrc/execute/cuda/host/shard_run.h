#pragma once
// Allreduces in which every rank's kernels work on a shard of all buffers, and hosts say when:
// Adasum, and what mode K's kernels have no code for.
#include <memory>
#include <vector>

#include "execute/cuda/host/adasum_sums.h"
#include "execute/cuda/host/gpu_run.h"

namespace horoacc::cuda {

/// Works in any mode that opens the others' memory. No kernel and no stream waits for another
/// process. Adasum's factors need the products of whole tensors: the windows are shown twice, the
/// second time from the last to the first, so that the last one stays where it is.
class ShardRun final : public GpuRun {
 public:
  /// `calls` own the tensors and outlive the run. `sums`: of an Adasum; else null. The bucket's
  /// windows take the whole buffer.
  ShardRun(Bucket bucket, std::vector<DeviceCall*> calls, std::unique_ptr<AdasumSums> sums);

 private:
  enum class Step { kShow, kShown, kWork, kWorked, kLeave, kAdd, kWeigh };
  [[nodiscard]] Result<bool> Go() override;
  /// Launches some of a window. True: that was all.
  [[nodiscard]] Result<bool> Work();
  /// All ranks are through with the window.
  [[nodiscard]] Status Leave();

  const Bucket bucket_;
  const std::unique_ptr<AdasumSums> sums_;
  Step step_ = Step::kShow;
  bool multiplies_ = sums_ != nullptr;  ///< the first time over the windows
  size_t window_ = 0;
  size_t part_ = 0;  ///< the next of the window's, of an Adasum
  bool begun_ = false;
  uint64_t shown_ = 0;   ///< number of the window in the GPU group's line when it was shown
  uint64_t number_ = 0;  ///< and now
  GpuEvent ended_;
};

}  // namespace horoacc::cuda
