#pragma once
// The GPUs of one engine: opened when the first call needs them.
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "execute/cuda/host/gpu.h"
#include "execute/cuda/host/pinned_blocks.h"

namespace horoacc::cuda {

/// Any thread may call any of it.
class Gpus {
 public:
  struct Place {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<PinnedBlocks> blocks;
  };

  /// `plugin`: a file; empty: the one beside this library, which needs a driver.
  Gpus(std::string plugin, SharedMemory memory);

  /// The error says what is missing: the driver, the plug-in, the GPU.
  [[nodiscard]] Result<Place> Find(int device);
  /// Gives back the memory of those that have nothing left to do.
  void Close();

 private:
  const std::string plugin_;
  const SharedMemory memory_;
  std::mutex mutex_;
  const ha_cuda_plugin* loaded_ = nullptr;
  std::map<int, Place> places_;
};

}  // namespace horoacc::cuda
