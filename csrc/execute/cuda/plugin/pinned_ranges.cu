#include "execute/cuda/plugin/current_device.cuh"
#include "execute/cuda/plugin/pinned_ranges.h"

namespace horoacc::cuda {

Status PinnedRanges::Pin(void* memory, size_t bytes) {
  const cudaError_t code =
      cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  const bool owned = code != cudaErrorHostMemoryAlreadyRegistered;
  if (owned) HA_TRY(Check(code, "cudaHostRegister"));
  if (!owned) Forget(code);
  void* there = nullptr;
  Status known =
      Check(cudaHostGetDevicePointer(&there, memory, 0), "cudaHostGetDevicePointer of a range");
  if (!known.ok()) {
    if (owned) Forget(cudaHostUnregister(memory));
    return known;
  }
  const std::scoped_lock lock(mutex_);
  ranges_[static_cast<const char*>(memory)] = {bytes, static_cast<char*>(there), owned};
  return {};
}

void PinnedRanges::Unpin(void* memory) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = ranges_.find(static_cast<const char*>(memory));
    if (found == ranges_.end()) return;
    const bool owned = found->second.owned;
    ranges_.erase(found);
    if (!owned) return;
  }
  Forget(cudaHostUnregister(memory));
}

Result<void*> PinnedRanges::AddressOf(const void* memory) const {
  const auto* const at = static_cast<const char*>(memory);
  const std::scoped_lock lock(mutex_);
  auto range = ranges_.upper_bound(at);
  if (range != ranges_.begin() && at < (--range)->first + range->second.bytes)
    return static_cast<void*>(range->second.there + (at - range->first));
  return MakeError(ErrorKind::kUnsupported, "a word that the GPU does not reach: it is not pinned");
}

}  // namespace horoacc::cuda
