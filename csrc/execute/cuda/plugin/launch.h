#pragma once
// Launches of the kernels on the current device. Included only by the plug-in's .cu files.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/kernels/kernel_plan.h"

namespace horoacc::cuda {

/// How many blocks of a kernel the current device holds at once, asked once a kernel. Any thread
/// may ask.
class Occupancy {
 public:
  explicit Occupancy(uint32_t processors) : processors_(processors) {}

  [[nodiscard]] cudaError_t Of(const void* kernel, uint32_t threads, uint32_t* blocks) {
    const std::scoped_lock lock(mutex_);
    const auto [known, is_new] = blocks_.try_emplace(kernel, 0);
    if (is_new) {
      int each = 0;
      const cudaError_t code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &each, kernel, static_cast<int>(threads), 0);
      if (code != cudaSuccess) {
        blocks_.erase(known);
        return code;
      }
      known->second = static_cast<uint32_t>(each) * processors_;
    }
    *blocks = known->second;
    return cudaSuccess;
  }

 private:
  const uint32_t processors_;  ///< streaming multiprocessors of the device
  std::mutex mutex_;
  std::map<const void*, uint32_t> blocks_;
};

struct Place {
  cudaStream_t stream;
  Occupancy& occupancy;
};

inline constexpr uint32_t kThreads = 256;

/// Launches at most `wanted` blocks, and no more than run at once: blocks take the work in turn.
/// The launch's own error: another library's last error on this thread stays what it is.
template <typename Kernel, typename... Args>
[[nodiscard]] cudaError_t LaunchResident(Kernel kernel, size_t wanted, const Place& place,
                                         Args... args) {
  const auto* const code = reinterpret_cast<const void*>(kernel);
  uint32_t resident = 0;
  const cudaError_t asked = place.occupancy.Of(code, kThreads, &resident);
  if (asked != cudaSuccess) return asked;
  const auto blocks = static_cast<uint32_t>(std::clamp<size_t>(wanted, 1, std::max(resident, 1U)));
  void* arguments[] = {&args...};
  return cudaLaunchKernel(code, dim3(blocks), dim3(kThreads), arguments, 0, place.stream);
}

/// Items that fit into the 4 KiB of a kernel's arguments, beside the rest.
inline constexpr uint32_t kInlineItems = 100;

[[nodiscard]] cudaError_t LaunchReduce(const ReducePlan& plan, const Place& place);

/// The plan's sums are at the GPU's address.
[[nodiscard]] cudaError_t LaunchAdasum(const AdasumPlan& plan, const Place& place);

/// `table` is the device's copy of plan.items; null if there are at most kInlineItems.
[[nodiscard]] cudaError_t LaunchPack(const PackPlan& plan, const PackItem* table,
                                     const Place& place);

/// One call of a persistent kernel's program: see ha_cuda_plugin::run_program. `watch` is the
/// program's, at the GPU's address.
[[nodiscard]] Status LaunchProgram(const ha_cuda_program& program, ha_cuda_watch* watch,
                                   const Place& place);

/// An error if this build has no code for the current device.
[[nodiscard]] cudaError_t FindKernels();

}  // namespace horoacc::cuda
