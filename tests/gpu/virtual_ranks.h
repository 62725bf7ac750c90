#pragma once
// Virtual ranks on a GPU: programs through the plug-in's C table, and their memory.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "execute/cuda/persistent/kernel_compiler.h"
#include "execute/cuda/persistent/kernel_outcome.h"
#include "support/check.h"

namespace horoacc::cuda {

inline void Must(cudaError_t code) {
  if (code != cudaSuccess) check::Fail(__FILE__, __LINE__, cudaGetErrorString(code));
}

/// GPU 0, opened by the plug-in under test.
struct Plugin {
  const ha_cuda_plugin* table = nullptr;
  void* self = nullptr;
};

inline Plugin OpenPlugin(const char* library) {
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) check::Fail(__FILE__, __LINE__, ::dlerror());
  const auto entry = reinterpret_cast<ha_cuda_plugin_entry>(::dlsym(loaded, HA_CUDA_PLUGIN_SYMBOL));
  CHECK(entry != nullptr && entry()->version == HA_CUDA_PLUGIN_VERSION);
  Plugin plugin{entry(), nullptr};
  ha_cuda_error error{};
  if (plugin.table->open(&plugin.self, 0, &error) != 0)
    check::Fail(__FILE__, __LINE__, error.message);
  return plugin;
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
  VirtualRanks(const Plugin& plugin, const KernelImage& image)
      : plugin_(plugin),
        image_(image),
        ranks_(HeaderOf(image).ranks),
        workspace_((HeaderOf(image).workspace_bytes + 511) / 512 * 512),
        memory_(workspace_ * ranks_),
        uploaded_(image.size()) {
    Must(cudaMemset(memory_.get(), 0, workspace_ * ranks_));
    Must(cudaMemcpy(uploaded_.get(), image.data(), image.size(), cudaMemcpyHostToDevice));
    watch_ = new (std::aligned_alloc(kPinned, kPinned)) ha_cuda_watch{};
    ha_cuda_error error{};
    if (plugin_.table->pin(plugin_.self, watch_, kPinned, &error) != 0)
      check::Fail(__FILE__, __LINE__, error.message);
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Must(cudaDeviceSynchronize());
  }
  ~VirtualRanks() {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
    plugin_.table->unpin(plugin_.self, watch_);
    std::free(watch_);
  }
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;

  /// The error, or the empty string.
  std::string Launch(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
                     double seconds = 20) {
    std::vector<void*> workspaces;
    for (uint32_t r = 0; r < ranks_; ++r)
      workspaces.push_back(static_cast<char*>(memory_.get()) + r * workspace_);
    const ha_cuda_program call{.image = image_.data(),
                               .bytes = image_.size(),
                               .uploaded = uploaded_.get(),
                               .rank = -1,
                               .inputs = inputs.data(),
                               .outputs = outputs.data(),
                               .workspaces = workspaces.data(),
                               .call = calls_,
                               .seconds = seconds,
                               .watch = watch_};
    ha_cuda_error error{};
    if (plugin_.table->run_program(plugin_.self, stream_, &call, &error) != 0) return error.message;
    ++calls_;
    return "";
  }
  /// Waits for the launches; the error, or the empty string.
  std::string End() {
    Must(cudaStreamSynchronize(stream_));
    const Status outcome = OutcomeOf(*watch_);
    return outcome.ok() ? "" : outcome.error().message;
  }
  void Abort() { AbortKernels(*watch_); }

 private:
  static constexpr size_t kPinned = size_t{64} << 10;  // whole pages, on any machine

  const Plugin plugin_;
  const KernelImage image_;
  const uint32_t ranks_;
  const uint64_t workspace_;  ///< bytes of a rank
  const GpuMemory memory_;
  const GpuMemory uploaded_;
  ha_cuda_watch* watch_ = nullptr;
  cudaStream_t stream_ = nullptr;
  uint64_t calls_ = 0;
};

}  // namespace horoacc::cuda
