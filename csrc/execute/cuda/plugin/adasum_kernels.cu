#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {
namespace {

template <typename E>
__global__ void __launch_bounds__(kThreads, 3)
    AdasumKernel(const __grid_constant__ AdasumArgs args) {
  GridAdasum<E>(args).Run({blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}

struct Launch {
  const AdasumPlan& plan;
  const Place& place;
  cudaError_t code = cudaErrorInvalidValue;

  template <typename E>
  void Take() {
    const size_t threads = GridAdasum<E>(plan.args).threads();
    const size_t wanted = (threads + kThreads - 1) / kThreads;
    code = LaunchResident(AdasumKernel<E>, wanted, place, plan.args);
  }
};

}  // namespace

cudaError_t LaunchAdasum(const AdasumPlan& plan, const Place& place) {
  Launch launch{plan, place};
  ChooseAdasum(plan.type, launch);
  return launch.code;
}

}  // namespace horoacc::cuda
