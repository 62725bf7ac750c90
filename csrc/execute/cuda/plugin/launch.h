#pragma once
// Launches of the kernels on the current device. Included only by the plug-in's .cu files.
#include <cuda_runtime_api.h>

#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/kernels/kernel_plan.h"

namespace horoacc::cuda {

struct Place {
  cudaStream_t stream = nullptr;
  uint32_t processors = 1;  ///< streaming multiprocessors of the device
};

inline constexpr uint32_t kThreads = 256;
/// Blocks for each multiprocessor, so that each has several at work.
inline constexpr uint32_t kBlocksEach = 8;
/// Items that fit into the 4 KiB of a kernel's arguments, beside the rest.
inline constexpr uint32_t kInlineItems = 100;

[[nodiscard]] cudaError_t LaunchReduce(const ReducePlan& plan, const Place& place);

/// `table` is the device's copy of plan.items; null if there are at most kInlineItems.
[[nodiscard]] cudaError_t LaunchPack(const PackPlan& plan, const PackItem* table,
                                     const Place& place);

/// One call of a persistent kernel's program: see ha_cuda_plugin::run_program.
[[nodiscard]] Status LaunchProgram(const ha_cuda_program& program, const Place& place);

/// An error if this build has no code for the current device.
[[nodiscard]] cudaError_t FindKernels();

}  // namespace horoacc::cuda
