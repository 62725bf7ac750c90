#pragma once
// The size of the kernel's buffers of a stream: twice the bandwidth-delay product. The kernel
// adapts buffers well up to a system limit (tcp_wmem, tcp_rmem), but not once a size was set. So a
// size is set only for a buffer that has reached the limit and bounds the rate; it doubles until
// the network is the bound.
#include <cstdint>
#include <span>
#include <string>

namespace horoacc {

struct StreamHealth {
  uint64_t rate = 0;          ///< bytes a second that the peer acknowledges; 0: not known yet
  uint64_t round_trip = 0;    ///< microseconds, the least seen
  bool owes = false;          ///< bytes were sent that the peer's host has not acknowledged
  uint64_t silence = 0;       ///< milliseconds since a packet came that could acknowledge
  uint64_t received = 0;      ///< bytes that came in a round trip, the most seen
  uint64_t acknowledged = 0;  ///< bytes, ever
  uint64_t data_packets = 0;  ///< received, ever, repeated ones included
  /// Bytes in flight to the peer: the bandwidth-delay product.
  [[nodiscard]] uint64_t under_way() const { return rate * round_trip / 1'000'000; }
};

/// From TCP_INFO; zeros if it fails.
[[nodiscard]] StreamHealth HealthOf(int fd);

/// How long the peer's host has acknowledged nothing. An idle connection is silent as well, so the
/// time counts from the first look that finds unacknowledged bytes. Acknowledging more than before
/// is an answer; so is the same acknowledgement again, if it came without data: a host that does
/// not hear this one repeats its data, with an old acknowledgement.
class HostSilence {
 public:
  /// Nanoseconds; 0 if it owes none.
  [[nodiscard]] int64_t Look(const StreamHealth& health, int64_t now_ns);

 private:
  // Values of the last look.
  int64_t looked_ns_ = 0;
  int64_t answered_ns_ = 0;  ///< the last answer, or the first look that found it owing
  bool owes_ = false;
  uint64_t acknowledged_ = 0;
  uint64_t data_packets_ = 0;
};

/// Whether a host is lost, from the silences of its connections with unacknowledged bytes: if all
/// were silent for the limit (0: never), or one for three times the limit. On a network that drops
/// much the kernel backs off, so one silent connection beside others proves less.
[[nodiscard]] bool IsGone(std::span<const int64_t> silences_ns, int64_t limit_ns);

/// How long a host may be silent until its connections are lost; 0: for ever.
void LimitSilence(int fd, int64_t limit_ns);
/// How long bytes may stay unacknowledged, or unread behind a full buffer; 0: for ever.
void LimitUnanswered(int fd, int64_t limit_ns);
/// "its host has acknowledged nothing for 13 s (host_timeout_seconds: 12)"
[[nodiscard]] std::string SilenceText(int64_t silent_ns, int64_t limit_ns);

enum class Direction { kSend, kReceive };

/// The bytes of payload for which a stream's buffer has room.
[[nodiscard]] uint64_t BufferOf(int fd, Direction direction);

/// The buffer to ask for with so many bytes in flight; `current` if that is enough. Pure.
[[nodiscard]] uint64_t WantedBuffer(uint64_t under_way, uint64_t current);

/// Enlarges a buffer that is at the kernel's limit and bounds the bytes in flight, if the system
/// allows this process to.
void AdaptBuffer(int fd, Direction direction, uint64_t under_way);

/// Options of every stream: a short backlog, so that a stripe goes to the stream that can send it
/// soonest; the fixed buffer size, if any; and no limit on how long a peer may leave data unread
/// (it may compute for minutes, or be stopped by a debugger; its host's acknowledgements show
/// life).
void PrepareStream(int fd, uint64_t fixed_buffer);

}  // namespace horoacc
