#pragma once
// What the connections of one rank's data links did, for whoever watches from another thread.
#include <atomic>
#include <cstdint>

namespace horoacc {

struct SocketCounters {
  std::atomic<uint64_t> connections{0};  ///< that came into being
  std::atomic<uint64_t> send_calls{0};   ///< system calls that sent something or tried to
  std::atomic<uint64_t> receive_calls{0};
};

/// Only the thread that drives the links counts.
inline void Count(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace horoacc
