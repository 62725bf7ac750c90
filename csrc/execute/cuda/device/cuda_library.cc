#include "execute/cuda/device/cuda_library.h"

#include <dlfcn.h>

namespace horoacc::cuda {
namespace {

Error Missing(const std::string& what) { return MakeError(ErrorKind::kUnsupported, what); }

}  // namespace

Result<const ha_cuda_plugin*> LoadCudaPlugin(const LibraryNames& names) {
  if (!names.driver.empty() && ::dlopen(names.driver.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Missing("there is no NVIDIA driver here: " + std::string(::dlerror()));
  }
  void* const library = ::dlopen(names.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Missing("the CUDA plug-in cannot be loaded (it is built where nvcc is): " +
                   std::string(::dlerror()));
  }
  const auto entry =
      reinterpret_cast<ha_cuda_plugin_entry>(::dlsym(library, HA_CUDA_PLUGIN_SYMBOL));
  const ha_cuda_plugin* const plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr || plugin->version != HA_CUDA_PLUGIN_VERSION) {
    return Missing("the CUDA plug-in " + names.plugin + " is of another version of HoroACC");
  }
  return plugin;
}

Result<std::string> PluginBesideThisLibrary() {
  Dl_info found{};
  if (::dladdr(reinterpret_cast<const void*>(&PluginBesideThisLibrary), &found) == 0 ||
      found.dli_fname == nullptr) {
    return Missing("the CUDA plug-in cannot be found: the loader does not know the core's library");
  }
  const std::string library = found.dli_fname;
  return library.substr(0, library.rfind('/') + 1) + "libhoroacc_cuda.so";
}

}  // namespace horoacc::cuda
