#pragma once
// The GPUs of one engine, each opened when the first call needs it.
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "execute/cuda/device/gpu.h"
#include "execute/cuda/device/pinned_blocks.h"
#include "execute/cuda/device/result_blocks.h"

namespace horoacc::cuda {

/// Any thread may call any method.
class Gpus {
 public:
  struct Place {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<PinnedBlocks> blocks;
    std::shared_ptr<ResultBlocks> results;
  };

  /// `plugin`: a file; empty: the plug-in beside this library, which needs a driver.
  Gpus(std::string plugin, SharedMemory memory);

  /// The error says what is missing: the driver, the plug-in, the GPU.
  [[nodiscard]] Result<Place> Find(int device);
  /// Frees the memory of the GPUs that have nothing left to do.
  void Close();

 private:
  const std::string plugin_;
  const SharedMemory memory_;
  std::mutex mutex_;
  const ha_cuda_plugin* loaded_ = nullptr;
  std::map<int, Place> places_;
};

}  // namespace horoacc::cuda
