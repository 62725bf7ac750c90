#pragma once
// How large the kernel's send buffer of a stream has to be: twice what the network has under way,
// which is the rate times the round trip. A buffer that is too small bounds the rate that can be
// measured, so the estimate doubles until the network itself is the bound.
#include <cstdint>

namespace horoacc {

struct StreamHealth {
  uint64_t rate = 0;            ///< bytes a second that the peer acknowledges; 0: not known yet
  uint64_t round_trip = 0;      ///< microseconds, the least seen
  uint64_t unacknowledged = 0;  ///< packets
  uint64_t silence = 0;         ///< milliseconds since the peer's kernel acknowledged anything
};

/// What TCP_INFO says; zeros if it says nothing.
[[nodiscard]] StreamHealth HealthOf(int fd);

/// The buffer to ask for; `current` if that will do. Pure.
[[nodiscard]] uint64_t WantedBuffer(const StreamHealth& health, uint64_t current);

/// Asks for a buffer of so many bytes of payload, and keeps the backlog behind it short, so that a
/// stripe goes to the stream that can send it soonest. Returns what the kernel granted.
uint64_t SetSendBuffer(int fd, uint64_t bytes);
[[nodiscard]] uint64_t SendBufferOf(int fd);

/// What every stream gets: no limit on how long a peer may leave data unread (it may compute for
/// minutes, or be stopped by a debugger; that its host is alive is seen from its acknowledgements).
void PrepareStream(int fd, uint64_t fixed_buffer);

}  // namespace horoacc
