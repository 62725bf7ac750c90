#pragma once
// Memory of the host that the GPU reaches. Included only by the plug-in's .cu files.
#include <map>
#include <mutex>

#include "base/result.h"

namespace horoacc::cuda {

/// Of one device, which is the current one in all calls. Any thread may call. CUDA says where the
/// beginning of a range lies for the GPU, and nothing about addresses within it.
class PinnedRanges {
 public:
  [[nodiscard]] Status Pin(void* memory, size_t bytes);
  void Unpin(void* memory);
  /// The GPU's address of memory in a pinned range.
  [[nodiscard]] Result<void*> AddressOf(const void* memory) const;

 private:
  struct Range {
    size_t bytes;
    char* there;  ///< the GPU's address
    bool owned;   ///< not pinned by another device of this process before
  };
  mutable std::mutex mutex_;
  std::map<const char*, Range> ranges_;  ///< by the host's address
};

}  // namespace horoacc::cuda
