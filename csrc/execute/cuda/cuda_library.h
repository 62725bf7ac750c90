#pragma once
// Finding the CUDA plug-in: only where there is a driver, and never a reason not to start.
#include <string>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

struct LibraryNames {
  std::string driver = "libcuda.so.1";
  std::string plugin;  ///< the file; libhoroacc_cuda.so beside the core's library
};

/// Loads the plug-in, which stays loaded. The error says what is missing: the driver, the plug-in,
/// or its version.
[[nodiscard]] Result<const ha_cuda_plugin*> LoadCudaPlugin(const LibraryNames& names);

}  // namespace horoacc::cuda
