#pragma once
// Memory that the peers of the host see and a GPU copies from and to without the host's help.
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "execute/cuda/host/gpu.h"

namespace horoacc::cuda {

/// Where shared memory comes from.
struct SharedMemory {
  std::function<void*(size_t)> allocate;  ///< from a page on page-aligned; null: there is no more
  std::function<void(void*)> free;
};

/// Pinning takes longer than copying, so what was pinned stays, and is used again and again: as
/// much as was ever in use at a time. Any thread may call any of it.
class PinnedBlocks {
 public:
  PinnedBlocks(std::shared_ptr<Gpu> gpu, SharedMemory memory);
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;
  ~PinnedBlocks();

  /// Null: there is no memory at all. Where shared memory is exhausted it is private memory.
  [[nodiscard]] std::byte* Take(size_t bytes);
  /// Whether the GPU reaches a block in use by itself.
  [[nodiscard]] bool IsPinned(std::byte* block);
  /// The block may be used again once `event` is done.
  void Retire(std::byte* block, GpuEvent event);
  /// Frees everything, if nothing is in use. False: something is.
  [[nodiscard]] bool Close();

 private:
  struct Retired {
    std::byte* block;
    GpuEvent event;
  };
  void Sweep();                                ///< under mutex_
  [[nodiscard]] bool MakeBlocks(size_t size);  ///< under mutex_

  const std::shared_ptr<Gpu> gpu_;
  const SharedMemory memory_;
  std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> free_;  ///< by size
  std::unordered_map<std::byte*, size_t> in_use_;   ///< their sizes; 0: private memory
  std::deque<Retired> retired_;
  std::vector<std::byte*> slabs_;
  std::map<std::byte*, bool> pinned_;  ///< by slab
};

}  // namespace horoacc::cuda
