#pragma once
// In which mode GPUs reduce a bucket, by its size: what `horoaccrun tune --gpus` has measured.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "execute/cuda/host/mode.h"
#include "schedule/measured.h"

namespace horoacc::cuda {

/// Under which a table has what a mode took: "gpu_nccl".
[[nodiscard]] std::string MeasuredName(GpuMode mode);

/// How many ranks have each GPU, by the first of them: the hosts of a table's rows about GPUs.
[[nodiscard]] std::vector<uint32_t> RanksOfGpus(std::span<const ha_cuda_traits> ranks);

/// Pure: ranks that were given the same choose alike.
class ModeBySize {
 public:
  /// Always that one.
  explicit ModeBySize(GpuMode usual) : usual_(usual) {}
  /// `usual`, but where one of the `others` was measured to be faster than it on GPUs like these.
  ModeBySize(GpuMode usual, std::span<const GpuMode> others, const schedule::MeasuredTable& table,
             std::span<const uint32_t> ranks_of_gpus);

  [[nodiscard]] GpuMode For(uint64_t bytes) const;
  [[nodiscard]] GpuMode usual() const { return usual_; }
  /// The usual one, or one that some size has.
  [[nodiscard]] bool Has(GpuMode mode) const;
  /// It has turned out to be impossible: the usual one takes its sizes.
  void Drop(GpuMode mode);

 private:
  struct From {
    uint64_t bytes;
    GpuMode mode;
  };
  GpuMode usual_;
  std::vector<From> from_;  ///< ascending
};

}  // namespace horoacc::cuda
