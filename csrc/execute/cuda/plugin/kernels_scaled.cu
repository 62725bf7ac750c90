// Persistent kernels of integers and truth values that are averaged or scaled.
#include "execute/cuda/plugin/kernel_launch.cuh"

namespace horoacc::cuda {

cudaError_t OrderScaled(const KernelOrder& order) {
  cudaError_t code = cudaErrorInvalidValue;
  VisitScaled(order.launch.header, Orders{order, &code});
  return code;
}

}  // namespace horoacc::cuda
