#include "execute/kernels/zero_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace horoacc {

std::shared_ptr<const std::byte> ZeroMemory(size_t bytes) {
  const size_t length = std::max<size_t>(bytes, 1);
  void* const memory =
      ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<const std::byte*>(memory),
          [memory, length](const std::byte*) { ::munmap(memory, length); }};
}

}  // namespace horoacc
