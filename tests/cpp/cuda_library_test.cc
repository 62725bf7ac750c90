// Loading the CUDA plug-in where something is missing, and the plug-in itself where it was built:
// it loads without a driver, and says that there is none.
#include "execute/cuda/cuda_library.h"

#include <dlfcn.h>

#include "check.h"
#include "execute/cuda/cuda_kernels.h"
#include "execute/cuda/kernel_compiler.h"

using namespace horoacc;
using namespace horoacc::cuda;

namespace {

constexpr char kSomeLibrary[] = "libm.so.6";

void FailsWith(const LibraryNames& names, const char* why) {
  const auto loaded = LoadCudaPlugin(names);
  CHECK(!loaded.ok());
  CHECK_EQ(loaded.error().kind, ErrorKind::kUnsupported);
  CHECK(loaded.error().message.find(why) != std::string::npos);
}

}  // namespace

TEST(WhatIsMissingIsTold) {
  FailsWith({"libno_such_driver.so.1", kSomeLibrary}, "no NVIDIA driver here");
  FailsWith({kSomeLibrary, "/nowhere/libhoroacc_cuda.so"}, "built where nvcc is");
  FailsWith({kSomeLibrary, kSomeLibrary}, "another version of HoroACC");
}

TEST(ThePluginWithoutADriver) {
  if (std::string(CUDA_PLUGIN).empty()) {
    std::printf("  skipped: this build has no CUDA plug-in\n");
    return;
  }
  const auto loaded = LoadCudaPlugin({kSomeLibrary, CUDA_PLUGIN});
  CHECK(loaded.ok());
  const ha_cuda_plugin& plugin = *loaded.value();
  CHECK_EQ(plugin.version, HA_CUDA_PLUGIN_VERSION);
  void* device = nullptr;
  ha_cuda_error error{};
  // There is no such GPU, wherever this runs.
  CHECK(plugin.open(&device, 4096, &error) != 0);
  CHECK(device == nullptr);
  CHECK(std::string(error.message).find("cuda") != std::string::npos);
}

TEST(PersistentKernelsWithoutADriver) {
  if (std::string(CUDA_PLUGIN).empty()) {
    std::printf("  skipped: this build has no CUDA plug-in\n");
    return;
  }
  void* const library = ::dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  const auto entry =
      reinterpret_cast<ha_cuda_kernels_entry>(::dlsym(library, HA_CUDA_KERNELS_SYMBOL));
  CHECK(entry != nullptr);
  const ha_cuda_kernels& kernels = *entry();
  CHECK_EQ(kernels.version, HA_CUDA_KERNELS_VERSION);
  const auto refuses = [&](const KernelImage& image, int device, int rank, const char* why) {
    void* self = nullptr;
    ha_cuda_error error{};
    CHECK(kernels.create(&self, device, image.data(), image.size(), rank, &error) != 0);
    CHECK(self == nullptr);
    CHECK(std::string(error.message).find(why) != std::string::npos);
  };
  const KernelImage program = CompileFixed(KernelKind::kDirect, 4, {.count = 100}).value();
  refuses(KernelImage(program.begin(), program.end() - 8), 0, -1, "no program of this build");
  refuses(program, 0, 4, "no such rank");
  refuses(program, 4096, -1, "cuda");  // there is no such GPU, wherever this runs
}
