#pragma once
// Any number of zeros to read, which cost no memory.
#include <cstddef>
#include <memory>

namespace horoacc {

/// At least `bytes` zeros, which cannot be written; null if the address space has no room. Their
/// pages are all the kernel's one page of zeros.
[[nodiscard]] std::shared_ptr<const std::byte> ZeroMemory(size_t bytes);

}  // namespace horoacc
