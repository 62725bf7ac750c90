#pragma once
// Enqueueing the kernels. Included only by the plug-in's .cu files.
#include <cuda_runtime_api.h>

#include "execute/cuda/kernels/kernel_plan.h"

namespace horoacc::cuda {

struct Place {
  cudaStream_t stream = nullptr;
  uint32_t processors = 1;  ///< streaming multiprocessors of the device
};

inline constexpr uint32_t kThreads = 256;
/// Enough blocks for each multiprocessor to have several at work.
inline constexpr uint32_t kBlocksEach = 8;
/// What fits into a kernel's arguments beside the rest: 4 KiB for all.
inline constexpr uint32_t kInlineItems = 100;

[[nodiscard]] cudaError_t LaunchReduce(const ReducePlan& plan, const Place& place);

/// `table` is the device's copy of plan.items; null if there are at most kInlineItems.
[[nodiscard]] cudaError_t LaunchPack(const PackPlan& plan, const PackItem* table,
                                     const Place& place);

}  // namespace horoacc::cuda
