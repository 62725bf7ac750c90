#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {
namespace {

template <typename E, typename Op, uint32_t P>
__global__ void __launch_bounds__(kThreads, 2)
    ReduceKernel(const __grid_constant__ ReduceArgs args) {
  ReduceOnGrid<E, Op, P>(args, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}

struct Launch {
  const ReducePlan& plan;
  const Place& place;

  template <typename E, typename Op, uint32_t P>
  void Take() const {
    const size_t runs = plan.args.count * sizeof(typename E::Stored) / kWideBytes + 1;
    const size_t wanted = (runs + kThreads - 1) / kThreads;
    const size_t most = size_t{place.processors} * kBlocksEach;
    const auto blocks = static_cast<uint32_t>(wanted < most ? wanted : most);
    ReduceKernel<E, Op, P><<<blocks, kThreads, 0, place.stream>>>(plan.args);
  }
};

}  // namespace

cudaError_t LaunchReduce(const ReducePlan& plan, const Place& place) {
  ChooseReduce(plan.type, plan.op, plan.args.sources, plan.scaled, Launch{plan, place});
  return cudaGetLastError();
}

}  // namespace horoacc::cuda
