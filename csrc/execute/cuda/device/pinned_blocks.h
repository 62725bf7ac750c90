#pragma once
// Pinned memory that the ranks of the host share, for copies from and to a GPU.
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "execute/cuda/device/gpu.h"

namespace horoacc::cuda {

/// The allocator of shared memory.
struct SharedMemory {
  std::function<void*(size_t)> allocate;  ///< page-aligned if a page or more; null: exhausted
  std::function<void(void*)> free;
};

/// Pinning takes longer than copying, so pinned blocks stay pinned and are used again: as many as
/// were ever in use at a time. Any thread may call any method.
class PinnedBlocks {
 public:
  PinnedBlocks(std::shared_ptr<Gpu> gpu, SharedMemory memory);
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;
  ~PinnedBlocks();

  /// Private memory if shared memory is exhausted; null: there is no memory at all.
  [[nodiscard]] std::byte* Take(size_t bytes);
  /// Whether the GPU can reach a block in use.
  [[nodiscard]] bool IsPinned(std::byte* block);
  /// The block may be used again once `event` is done.
  void Retire(std::byte* block, GpuEvent event);
  /// Frees all memory unless a block is in use. False: one is.
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
