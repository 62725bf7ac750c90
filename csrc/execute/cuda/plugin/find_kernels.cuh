#pragma once
// Whether a device can run what was compiled. Included only by the plug-in's .cu files.
#include <cuda_runtime_api.h>

namespace horoacc::cuda {

/// An error if this build has no code for the current device.
[[nodiscard]] cudaError_t FindKernels();

}  // namespace horoacc::cuda
