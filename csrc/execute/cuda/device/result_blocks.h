#pragma once
// A GPU's memory for results whose size the caller cannot know before the call.
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "execute/cuda/device/gpu.h"

namespace horoacc::cuda {

/// As many blocks as were ever in use at a time stay until the engine ends: freeing one would wait
/// for all that the GPU does, and with it for other ranks. Any thread may call any method.
class ResultBlocks {
 public:
  explicit ResultBlocks(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ResultBlocks(const ResultBlocks&) = delete;
  ResultBlocks& operator=(const ResultBlocks&) = delete;
  ~ResultBlocks();

  [[nodiscard]] Result<std::byte*> Take(size_t bytes);
  /// The block may be used again once `event` is done.
  void Retire(std::byte* block, GpuEvent event);
  /// Frees all memory that is not in use. False: some is.
  [[nodiscard]] bool Close();

 private:
  struct Retired {
    std::byte* block;
    GpuEvent event;
  };
  void Sweep();  ///< under mutex_
  void FreeAll();

  const std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  std::multimap<size_t, std::byte*> free_;         ///< by size
  std::unordered_map<std::byte*, size_t> in_use_;  ///< their sizes
  std::vector<Retired> retired_;                   ///< in use until the event is done
};

}  // namespace horoacc::cuda
