#include "mock_cuda/mock_kernels.h"

#include <algorithm>
#include <cstring>

#include "execute/cuda/plugin/launch.h"
#include "mock_cuda/mock_world.h"

namespace horoacc::mock {
namespace {

using cuda::PackItem;

// Stubs with the parameters of the kernels; nobody calls them.
void ReduceKernel(cuda::ReduceArgs) {}
void PackTable(cuda::PackArgs) {}
void AdasumKernel(cuda::AdasumArgs) {}

uint32_t last_blocks = 0;

/// The sum of int32 elements.
void RunReduce(const cuda::Operands& operands) {
  std::vector<int32_t> sums(operands.count);
  for (uint32_t s = 0; s < operands.sources; ++s) {
    const auto* const from = static_cast<const int32_t*>(BytesAt(operands.source[s]));
    for (size_t i = 0; i < operands.count; ++i) sums[i] += from[i];
  }
  for (uint32_t d = 0; d < operands.destinations; ++d)
    std::memcpy(BytesAt(operands.destination[d]), sums.data(), operands.count * sizeof(int32_t));
}

/// The number of sources, in the first lane.
void RunAdasum(const cuda::AdasumArgs& args) {
  *static_cast<double*>(BytesAt(args.sums)) = args.sources;
}

void RunPack(const cuda::PackArgs& args) {
  const auto* const items = static_cast<const PackItem*>(BytesAt(args.items));
  for (uint32_t i = 0; i < args.item_count; ++i)
    std::memcpy(BytesAt(items[i].to), BytesAt(items[i].from), items[i].count);
}

}  // namespace

bool IsKernel(const void* kernel) {
  return kernel == reinterpret_cast<const void*>(ReduceKernel) ||
         kernel == reinterpret_cast<const void*>(AdasumKernel) ||
         kernel == reinterpret_cast<const void*>(PackTable);
}

std::function<void()> KernelOf(const void* kernel, void** arguments, uint32_t blocks) {
  last_blocks = blocks;
  if (kernel == reinterpret_cast<const void*>(ReduceKernel))
    return [args = *static_cast<cuda::ReduceArgs*>(arguments[0])] { RunReduce(args.operands); };
  if (kernel == reinterpret_cast<const void*>(AdasumKernel))
    return [args = *static_cast<cuda::AdasumArgs*>(arguments[0])] { RunAdasum(args); };
  return [args = *static_cast<cuda::PackArgs*>(arguments[0])] { RunPack(args); };
}

uint32_t LastBlocks() { return last_blocks; }

}  // namespace horoacc::mock

// Beneath the entry of the plug-in, in place of its files with kernels.
namespace horoacc::cuda {

cudaError_t FindKernels() { return mock::Begin("cudaFuncGetAttributes"); }

cudaError_t LaunchReduce(const ReducePlan& plan, const Place& place) {
  return LaunchResident(mock::ReduceKernel, plan.args.operands.count, place, plan.args);
}

cudaError_t LaunchAdasum(const AdasumPlan& plan, const Place& place) {
  return LaunchResident(mock::AdasumKernel, plan.args.count, place, plan.args);
}

// A list without a table is the kernel's argument, which outlives the call.
cudaError_t LaunchPack(const PackPlan& plan, const PackItem* table, const Place& place) {
  if (table == nullptr) {
    const cudaError_t code = mock::Begin("cudaLaunchKernel");
    if (code == cudaSuccess) {
      mock::Enqueue(place.stream, [items = plan.items] {
        for (const PackItem& item : items)
          std::memcpy(mock::BytesAt(item.to), mock::BytesAt(item.from), item.count);
      });
    }
    return code;
  }
  PackArgs args = plan.args;
  args.items = table;
  return LaunchResident(mock::PackTable, args.tiles, place, args);
}

Status LaunchProgram(const ha_cuda_program&, ha_cuda_watch* watch, const Place& place) {
  mock::Enqueue(place.stream,
                [watch] { static_cast<ha_cuda_watch*>(mock::BytesAt(watch))->report = 7; });
  return {};
}

}  // namespace horoacc::cuda
