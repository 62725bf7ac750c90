// Loading the CUDA plug-in where a file is missing, and the plug-in itself where it was built: it
// loads without a driver, and reports that there is none.
#include "execute/cuda/device/cuda_library.h"

#include "support/check.h"

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
