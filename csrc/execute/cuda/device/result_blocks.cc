#include "execute/cuda/device/result_blocks.h"

#include <algorithm>
#include <iterator>

namespace horoacc::cuda {
namespace {

constexpr size_t kLeastBlock = size_t{2} << 20;  // in which CUDA allocates

// Few sizes, so that blocks fit again.
size_t BlockBytes(size_t bytes) {
  return std::max(kLeastBlock, (bytes + kLeastBlock - 1) / kLeastBlock * kLeastBlock);
}

}  // namespace

ResultBlocks::~ResultBlocks() {
  for (const auto& [block, event] : retired_) Free(block);
  for (const auto& [size, block] : free_) Free(block);
}

Result<std::byte*> ResultBlocks::Take(size_t bytes) {
  const size_t wanted = BlockBytes(bytes);
  {
    const std::scoped_lock lock(mutex_);
    Sweep();
    // One that is much larger is left for a call that needs it.
    if (const auto found = free_.lower_bound(wanted);
        found != free_.end() && found->first <= 2 * wanted) {
      const auto [size, block] = *found;
      free_.erase(found);
      free_bytes_ -= size;
      in_use_.emplace(block, size);
      return block;
    }
  }
  void* made = nullptr;
  HA_TRY(gpu_->Call(&ha_cuda_plugin::allocate, wanted, &made));
  auto* const block = static_cast<std::byte*>(made);
  const std::scoped_lock lock(mutex_);
  in_use_.emplace(block, wanted);
  return block;
}

void ResultBlocks::Retire(std::byte* block, GpuEvent event) {
  const std::scoped_lock lock(mutex_);
  retired_.emplace_back(block, std::move(event));
  Sweep();
}

void ResultBlocks::Sweep() {
  while (!retired_.empty()) {
    const auto& [block, event] = retired_.front();
    const Result<bool> done = gpu_->IsDone(event);
    if (!done.ok() || !done.value()) break;
    const auto used = in_use_.extract(block);
    free_.emplace(used.mapped(), block);
    free_bytes_ += used.mapped();
    retired_.pop_front();
  }
  while (free_bytes_ > kMostFree) {
    const auto largest = std::prev(free_.end());
    free_bytes_ -= largest->first;
    Free(largest->second);
    free_.erase(largest);
  }
}

}  // namespace horoacc::cuda
