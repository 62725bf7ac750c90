#pragma once
// Sleeping on a word that other processes write. Shared (non-private) futexes, for ranks that are
// threads as for ranks that are processes.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

namespace horoacc {

/// Sleeps while `word` equals `seen`, at most `timeout_ns`. May wake early; callers re-check.
inline void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns) {
  timespec relative{timeout_ns / 1'000'000'000LL, timeout_ns % 1'000'000'000LL};
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT, seen, &relative, nullptr,
          0);
}

inline void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr,
          nullptr, 0);
}

}  // namespace horoacc
