// Persistent kernels of floats.
#include "execute/cuda/plugin/kernel_launch.cuh"

namespace horoacc::cuda {

cudaError_t OrderFloats(const KernelOrder& order) {
  cudaError_t code = cudaErrorInvalidValue;
  VisitFloats(order.launch.header, Orders{order, &code});
  return code;
}

}  // namespace horoacc::cuda
