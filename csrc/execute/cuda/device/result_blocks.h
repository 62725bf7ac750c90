#pragma once
// A GPU's memory for results whose size the caller cannot know before the call.
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "execute/cuda/device/gpu.h"

namespace horoacc::cuda {

/// Allocating takes longer than most copies, so blocks are used again; at most kMostFree bytes wait
/// for that. Any thread may call any method.
class ResultBlocks {
 public:
  static constexpr size_t kMostFree = size_t{256} << 20;

  explicit ResultBlocks(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ResultBlocks(const ResultBlocks&) = delete;
  ResultBlocks& operator=(const ResultBlocks&) = delete;
  ~ResultBlocks();

  [[nodiscard]] Result<std::byte*> Take(size_t bytes);
  /// The block may be used again once `event` is done.
  void Retire(std::byte* block, GpuEvent event);

 private:
  void Sweep();  ///< under mutex_
  void Free(std::byte* block) { gpu_->Drop(&ha_cuda_plugin::deallocate, block); }

  const std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  std::multimap<size_t, std::byte*> free_;  ///< by size
  size_t free_bytes_ = 0;
  std::unordered_map<std::byte*, size_t> in_use_;  ///< their sizes
  std::deque<std::pair<std::byte*, GpuEvent>> retired_;
};

}  // namespace horoacc::cuda
