#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {
namespace {

/// Three blocks of 256 threads with 128 bytes of loads each are 98 KB under way on a processor:
/// more than the memory of any GPU of today asks for.
template <typename E, uint32_t P, typename Op>
__global__ void __launch_bounds__(kThreads, 3)
    ReduceKernel(const __grid_constant__ ReduceArgs args, const __grid_constant__ Op op) {
  ReduceOnGrid<E, P>(args.operands, args.factors, op,
                     {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}

struct Launch {
  const ReducePlan& plan;
  const Place& place;
  cudaError_t code = cudaErrorInvalidValue;

  template <typename E, uint32_t P, typename Op>
  void Take(const Op& op) {
    using Shape = ReduceShape<typename E::Stored, P>;
    const size_t units = plan.args.operands.count / Shape::kLength + 1;
    const size_t wanted = (units + kThreads - 1) / kThreads;
    code = LaunchResident(ReduceKernel<E, P, Op>, wanted, place, plan.args, op);
  }
};

}  // namespace

cudaError_t LaunchReduce(const ReducePlan& plan, const Place& place) {
  Launch launch{plan, place};
  ChooseReduce(plan.type, plan.op, plan.args.operands.sources, plan.scaled, launch);
  return launch.code;
}

}  // namespace horoacc::cuda
