#pragma once
// Virtual ranks on a GPU: programs through the plug-in's C table, and memory of theirs.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "execute/cuda/cuda_kernels.h"
#include "execute/cuda/kernel_compiler.h"

namespace horoacc::cuda {

inline void Must(cudaError_t code) {
  if (code != cudaSuccess) check::Fail(__FILE__, __LINE__, cudaGetErrorString(code));
}

inline const ha_cuda_kernels& KernelsOf(const char* library) {
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) check::Fail(__FILE__, __LINE__, ::dlerror());
  const auto entry =
      reinterpret_cast<ha_cuda_kernels_entry>(::dlsym(loaded, HA_CUDA_KERNELS_SYMBOL));
  CHECK(entry != nullptr && entry()->version == HA_CUDA_KERNELS_VERSION);
  return *entry();
}

/// Memory of the GPU.
class GpuMemory {
 public:
  explicit GpuMemory(size_t bytes) { Must(cudaMalloc(&memory_, bytes > 0 ? bytes : 1)); }
  ~GpuMemory() { static_cast<void>(cudaFree(memory_)); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  [[nodiscard]] void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

/// A program whose ranks are all on GPU 0.
class VirtualRanks {
 public:
  VirtualRanks(const ha_cuda_kernels& kernels, const KernelImage& image) : kernels_(kernels) {
    ha_cuda_error error{};
    if (kernels_.create(&self_, 0, image.data(), image.size(), -1, &error) != 0) {
      check::Fail(__FILE__, __LINE__, error.message);
    }
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~VirtualRanks() {
    kernels_.destroy(self_);
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;

  /// The error, or the empty string.
  std::string Launch(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
                     double seconds = 20) {
    ha_cuda_error error{};
    const int code =
        kernels_.launch(self_, stream_, inputs.data(), outputs.data(), seconds, &error);
    return code == 0 ? "" : error.message;
  }
  /// Waits for the launches; the error, or the empty string.
  std::string End() {
    Must(cudaStreamSynchronize(stream_));
    ha_cuda_error error{};
    return kernels_.outcome(self_, &error) == 0 ? "" : error.message;
  }
  void Abort() { kernels_.abort(self_); }

 private:
  const ha_cuda_kernels& kernels_;
  void* self_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace horoacc::cuda
