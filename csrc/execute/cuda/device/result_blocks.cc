#include "execute/cuda/device/result_blocks.h"

#include <algorithm>
#include <bit>

namespace horoacc::cuda {
namespace {

constexpr size_t kLeastBlock = size_t{2} << 20;  // in which CUDA allocates

// Few sizes, two from each power of two to the next, so that blocks fit again: nothing is freed
// before the end.
size_t BlockBytes(size_t bytes) {
  const size_t step = std::max(kLeastBlock, std::bit_floor(bytes) / 2);
  return std::max(kLeastBlock, (bytes + step - 1) / step * step);
}

}  // namespace

// Of an engine that has ended: what a failed GPU has not finished is left to it.
ResultBlocks::~ResultBlocks() {
  Sweep();
  FreeAll();
}

void ResultBlocks::FreeAll() {
  for (const auto& [size, block] : free_) gpu_->Drop(&ha_cuda_plugin::deallocate, block);
  free_.clear();
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
      in_use_.emplace(block, size);
      return block;
    }
  }
  void* made = nullptr;
  if (const Status failed = gpu_->Call(&ha_cuda_plugin::allocate, wanted, &made); !failed.ok()) {
    return MakeError(ErrorKind::kSystem, "no memory on the GPU for a result of " +
                                             std::to_string(bytes) +
                                             " bytes: " + failed.error().message);
  }
  auto* const block = static_cast<std::byte*>(made);
  const std::scoped_lock lock(mutex_);
  in_use_.emplace(block, wanted);
  return block;
}

void ResultBlocks::Retire(std::byte* block, GpuEvent event) {
  const std::scoped_lock lock(mutex_);
  retired_.push_back({block, std::move(event)});
  Sweep();
}

void ResultBlocks::Sweep() {
  std::erase_if(retired_, [this](const Retired& retired) {
    const Result<bool> done = gpu_->IsDone(retired.event);
    if (!done.ok() || !done.value()) return false;
    const auto used = in_use_.extract(retired.block);
    free_.emplace(used.mapped(), retired.block);
    return true;
  });
}

bool ResultBlocks::Close() {
  const std::scoped_lock lock(mutex_);
  Sweep();
  FreeAll();
  return in_use_.empty();
}

}  // namespace horoacc::cuda
