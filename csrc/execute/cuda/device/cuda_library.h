#pragma once
// Finds and loads the CUDA plug-in. That there is none is an error of the call that needs it only.
#include <string>

#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

struct LibraryNames {
  std::string driver = "libcuda.so.1";  ///< empty: the plug-in needs none
  std::string plugin;                   ///< the file; libhoroacc_cuda.so beside the core's library
};

/// Loads the plug-in, which stays loaded. The error says what is missing: the driver, the plug-in,
/// or its version.
[[nodiscard]] Result<const ha_cuda_plugin*> LoadCudaPlugin(const LibraryNames& names);

/// Where the plug-in is installed: in the folder of the library that has this function.
[[nodiscard]] Result<std::string> PluginBesideThisLibrary();

}  // namespace horoacc::cuda
