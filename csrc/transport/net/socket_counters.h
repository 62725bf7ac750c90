#pragma once
// Counters of the connections of one rank's data links; other threads may read them.
#include <atomic>
#include <cstdint>

namespace horoacc {

struct SocketCounters {
  std::atomic<uint64_t> connections{0};  ///< that were made
  std::atomic<uint64_t> send_calls{0};   ///< system calls that sent something or tried to
  std::atomic<uint64_t> receive_calls{0};
};

/// Called only by the thread that drives the links.
inline void Count(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace horoacc
