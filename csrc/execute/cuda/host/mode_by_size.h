#pragma once
// The mode in which GPUs reduce a bucket, by its size, as `horoaccrun tune -- --gpus` has measured.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "execute/cuda/host/mode.h"
#include "schedule/measured.h"

namespace horoacc::cuda {

/// The name of a mode in a table of measured times: "gpu_nccl".
[[nodiscard]] std::string MeasuredName(GpuMode mode);

/// How many ranks have each GPU, in the order of the first of them. A table's rows about GPUs have
/// these numbers as their hosts.
[[nodiscard]] std::vector<uint32_t> RanksOfGpus(std::span<const ha_cuda_traits> ranks);

/// A pure function of its arguments: ranks with the same table choose alike.
class ModeBySize {
 public:
  /// Always `usual`.
  explicit ModeBySize(GpuMode usual) : usual_(usual) {}
  /// `usual`, but one of the `others` where it was measured to be faster on GPUs like these.
  ModeBySize(GpuMode usual, std::span<const GpuMode> others, const schedule::MeasuredTable& table,
             std::span<const uint32_t> ranks_of_gpus);

  [[nodiscard]] GpuMode For(uint64_t bytes) const;
  [[nodiscard]] GpuMode usual() const { return usual_; }
  /// Whether it is the usual mode, or that of some size.
  [[nodiscard]] bool Has(GpuMode mode) const;
  /// Gives the sizes of a mode that is impossible to the usual one.
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
