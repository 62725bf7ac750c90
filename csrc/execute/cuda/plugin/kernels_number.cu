// Persistent kernels of integers and truth values, and of collectives that only move bytes.
#include "execute/cuda/plugin/kernel_launch.cuh"

namespace horoacc::cuda {

cudaError_t OrderNumbers(const KernelOrder& order) {
  cudaError_t code = cudaErrorInvalidValue;
  VisitNumbers(order.launch.header, Orders{order, &code});
  return code;
}

}  // namespace horoacc::cuda
