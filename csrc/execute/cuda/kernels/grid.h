#pragma once
// The place of a thread in a kernel. Kernels are functions of it, so that the same function runs on
// a GPU and, thread after thread, in a test on the host.
#include <cstddef>
#include <cstdint>

#include "base/device.h"

namespace horoacc::cuda {

struct Grid {
  uint32_t block = 0;
  uint32_t blocks = 1;
  uint32_t thread = 0;
  uint32_t threads = 1;  ///< of a block

  [[nodiscard]] HA_INLINE size_t index() const { return size_t{block} * threads + thread; }
  [[nodiscard]] HA_INLINE size_t size() const { return size_t{blocks} * threads; }
};

}  // namespace horoacc::cuda
