#include "execute/cuda/device/pinned_blocks.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace horoacc::cuda {
namespace {

constexpr size_t kSmallest = 4096;
constexpr size_t kLargestShared = 1 << 20;  // larger blocks have a slab each
constexpr size_t kSlab = 4 << 20;

// Powers of two for blocks that share a slab; above, four sizes for each power of two.
size_t SizeFor(size_t bytes) {
  if (bytes <= kLargestShared) return std::max(kSmallest, std::bit_ceil(bytes));
  const size_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

}  // namespace

PinnedBlocks::PinnedBlocks(std::shared_ptr<Gpu> gpu, SharedMemory memory)
    : gpu_(std::move(gpu)), memory_(std::move(memory)) {}

// The events of a lost GPU are never done; its memory is then not freed.
PinnedBlocks::~PinnedBlocks() {
  const int64_t limit = NowNs() + kCloseLimit;
  while (!Close() && NowNs() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::byte* PinnedBlocks::Take(size_t bytes) {
  const size_t size = SizeFor(bytes);
  const std::scoped_lock lock(mutex_);
  Sweep();
  std::byte* block = nullptr;
  size_t known = size;
  if (auto& free = free_[size]; !free.empty() || MakeBlocks(size)) {
    block = free.back();
    free.pop_back();
  } else {
    block = static_cast<std::byte*>(std::aligned_alloc(kSmallest, size));
    known = 0;
  }
  if (block) in_use_.emplace(block, known);
  return block;
}

bool PinnedBlocks::MakeBlocks(size_t size) {
  const size_t bytes = size <= kLargestShared ? kSlab : size;
  auto* const slab = static_cast<std::byte*>(memory_.allocate(bytes));
  if (!slab) return false;
  // A GPU can copy from and to memory that is not pinned, but more slowly.
  const bool pinned = gpu_->Pin(slab, bytes).ok();
  slabs_.push_back(slab);
  pinned_.emplace(slab, pinned);
  for (size_t offset = 0; offset + size <= bytes; offset += size)
    free_[size].push_back(slab + offset);
  return true;
}

// A shared block lies in the last slab that begins before it.
bool PinnedBlocks::IsPinned(std::byte* block) {
  const std::scoped_lock lock(mutex_);
  const auto found = in_use_.find(block);
  if (found == in_use_.end() || found->second == 0) return false;
  return std::prev(pinned_.upper_bound(block))->second;
}

void PinnedBlocks::Retire(std::byte* block, GpuEvent event) {
  if (!block) return;
  const std::scoped_lock lock(mutex_);
  retired_.push_back({block, std::move(event)});
  Sweep();
}

void PinnedBlocks::Sweep() {
  std::erase_if(retired_, [this](const Retired& retired) {
    const Result<bool> done = gpu_->IsDone(retired.event);
    if (!done.ok() || !done.value()) return false;
    const auto found = in_use_.find(retired.block);
    if (found->second > 0) {
      free_[found->second].push_back(retired.block);
    } else {
      std::free(retired.block);
    }
    in_use_.erase(found);
    return true;
  });
}

bool PinnedBlocks::Close() {
  const std::scoped_lock lock(mutex_);
  Sweep();
  if (!in_use_.empty()) return false;
  free_.clear();
  for (std::byte* slab : std::exchange(slabs_, {})) {
    if (pinned_[slab]) gpu_->Unpin(slab);
    memory_.free(slab);
  }
  pinned_.clear();
  return true;
}

}  // namespace horoacc::cuda
