#pragma once
// Launching persistent kernels. Included only by the plug-in's .cu files.
//
// There are as many instances as element types with and without factors; three files contain them,
// so that a build compiles them in parallel.
#include "execute/cuda/persistent/kernel_instance.h"
#include "execute/cuda/plugin/gpu_cta.cuh"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {

inline constexpr uint32_t kKernelThreads = 512;

/// The kernel's argument.
struct KernelLaunch {
  KernelHeader header;
  KernelCall call;
  GpuWatch watch;
  const char* program;  ///< in the GPU's memory
  uint32_t first_rank;  ///< of those whose blocks are in this launch
  uint32_t here;        ///< ranks in this launch
};
static_assert(sizeof(KernelLaunch) <= 4096);

/// Blocks of a launch, and blocks that the device can hold: all must be there at once, since they
/// wait for each other.
struct Residency {
  uint32_t wanted = 0;
  uint32_t resident = 0;
};

/// Asks for a launch if all its blocks fit, which `residency` says, and for nothing otherwise.
struct KernelOrder {
  const KernelLaunch& launch;
  const Place& place;
  Residency* residency = nullptr;
};

[[nodiscard]] cudaError_t OrderFloats(const KernelOrder& order);
[[nodiscard]] cudaError_t OrderNumbers(const KernelOrder& order);
[[nodiscard]] cudaError_t OrderScaled(const KernelOrder& order);

namespace {

template <typename E, typename Op>
__global__ void __launch_bounds__(kKernelThreads, 1)
    PersistentKernel(const __grid_constant__ KernelLaunch launch, Op op) {
  __shared__ CombineArgs args;
  const uint32_t channels = launch.header.channels;
  const uint32_t of_rank = launch.header.lanes * channels;
  GpuCta cta(launch.watch, args, launch.first_rank + blockIdx.x / of_rank,
             blockIdx.x / channels % launch.header.lanes, blockIdx.x % channels);
  const KernelProgram program(launch.header, launch.program);
  RunKernelLane<E>(cta, program, launch.call, op);
}

template <typename E, typename Op>
cudaError_t Order(const KernelOrder& order, Op op) {
  const auto kernel = PersistentKernel<E, Op>;
  const KernelHeader& header = order.launch.header;
  const cudaError_t asked = order.place.occupancy.Of(reinterpret_cast<const void*>(kernel),
                                                     kKernelThreads, &order.residency->resident);
  if (asked != cudaSuccess) return asked;
  order.residency->wanted = order.launch.here * header.lanes * header.channels;
  if (order.residency->wanted > order.residency->resident) return cudaSuccess;
  // A cooperative launch fails if some blocks would have to wait for others to end.
  void* arguments[] = {const_cast<KernelLaunch*>(&order.launch), &op};
  return cudaLaunchCooperativeKernel(kernel, dim3(order.residency->wanted), dim3(kKernelThreads),
                                     arguments, 0, order.place.stream);
}

/// The visitor for kernel_instance.h.
struct Orders {
  const KernelOrder& order;
  cudaError_t* code;

  template <typename E, typename Op>
  void Take(Op op) const {
    *code = Order<E>(order, op);
  }
};

}  // namespace
}  // namespace horoacc::cuda
