#pragma once
// Pages of memory: 4 KiB on x86-64; 4, 16 or 64 KiB on aarch64, as the kernel was built.
#include <unistd.h>

#include <cstddef>

namespace horoacc {

/// A layout of shared memory is made of these, so that each part of it can be given back or pinned
/// on every kernel. They cost address space: memory is counted in the kernel's own pages.
inline constexpr size_t kLargestPage = 64 << 10;

constexpr size_t WholePages(size_t bytes) {
  return (bytes + kLargestPage - 1) / kLargestPage * kLargestPage;
}

/// Of the kernel that runs.
[[nodiscard]] inline size_t PageSize() noexcept {
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace horoacc
