#include <algorithm>

#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {
namespace {

struct InlineItems {
  PackItem item[kInlineItems];
};

/// Adds up a warp's counts, and adds them to the total if there are any.
__device__ void CountNonfinite(uint32_t bad, unsigned long long* total) {
  uint32_t sum = bad;
  for (int lanes = warpSize / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  }
  if (threadIdx.x % warpSize == 0 && sum != 0)
    atomicAdd(total, static_cast<unsigned long long>(sum));
}

template <typename C>
__device__ void Pack(const PackArgs& args) {
  const uint32_t bad = PackOnGrid<C>(args, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
  if (args.nonfinite != nullptr) CountNonfinite(bad, args.nonfinite);
}

template <typename C>
__global__ void __launch_bounds__(kThreads, 3) PackTable(const __grid_constant__ PackArgs args) {
  Pack<C>(args);
}

/// A list of few tensors is a kernel argument, so that nothing is copied before the launch.
template <typename C>
__global__ void __launch_bounds__(kThreads, 3)
    PackInline(const __grid_constant__ PackArgs given, const __grid_constant__ InlineItems items) {
  PackArgs args = given;
  args.items = items.item;
  Pack<C>(args);
}

struct Launch {
  const PackPlan& plan;
  const PackItem* table;
  const Place& place;
  cudaError_t code = cudaErrorInvalidValue;

  template <typename C>
  void Take() {
    PackArgs args = plan.args;
    args.items = table;
    if (table != nullptr) {
      code = LaunchResident(PackTable<C>, args.tiles, place, args);
      return;
    }
    InlineItems items;
    std::copy(plan.items.begin(), plan.items.end(), items.item);
    code = LaunchResident(PackInline<C>, args.tiles, place, args, items);
  }
};

}  // namespace

// All kernels are compiled for the same devices.
cudaError_t FindKernels() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, PackTable<Bytes>);
}

cudaError_t LaunchPack(const PackPlan& plan, const PackItem* table, const Place& place) {
  Launch launch{plan, table, place};
  ChoosePack(plan.from, plan.to, plan.as_bytes, launch);
  return launch.code;
}

}  // namespace horoacc::cuda
