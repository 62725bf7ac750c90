#pragma once
// How large the kernel's buffers of a stream have to be: twice what the network has under way,
// which is the rate times the round trip. The kernel adapts them by itself, and better than anybody
// from outside, up to a limit of the system's (tcp_wmem, tcp_rmem); and not any more once a size
// was set. So sizes are set only where a buffer has come to that limit and bounds the rate. That
// estimate doubles until the network itself is the bound.
#include <cstdint>
#include <span>
#include <string>

namespace horoacc {

struct StreamHealth {
  uint64_t rate = 0;          ///< bytes a second that the peer acknowledges; 0: not known yet
  uint64_t round_trip = 0;    ///< microseconds, the least seen
  bool owes = false;          ///< its host would acknowledge something by now if it heard us
  uint64_t silence = 0;       ///< milliseconds since a packet came that could acknowledge
  uint64_t received = 0;      ///< bytes that came in a round trip, the most seen
  uint64_t acknowledged = 0;  ///< bytes, ever
  uint64_t data_packets = 0;  ///< that came, ever, also those that had come before
  /// Bytes that the network holds on the way to the peer.
  [[nodiscard]] uint64_t under_way() const { return rate * round_trip / 1'000'000; }
};

/// What TCP_INFO says; zeros if it says nothing.
[[nodiscard]] StreamHealth HealthOf(int fd);

/// For how long the host at the other end has answered nothing of what it was sent. An idle
/// connection is silent as well, so the time counts from the first look that finds it owes an
/// answer. An answer is that it acknowledges more than before; or the same again, if it sent no
/// data since the last look: who does not hear us sends its data again and again, each time with an
/// old acknowledgement on it.
class HostSilence {
 public:
  /// Nanoseconds; 0 if it owes none.
  [[nodiscard]] int64_t Look(const StreamHealth& health, int64_t now_ns);

 private:
  // As of the last look.
  int64_t looked_ns_ = 0;
  int64_t answered_ns_ = 0;  ///< or found to owe an answer for the first time
  bool owes_ = false;
  uint64_t acknowledged_ = 0;
  uint64_t data_packets_ = 0;
};

/// Whether a host is lost of which these are the silences, on the connections on which it owes an
/// answer. It is if none of them has heard of it for the limit (0: never). Where others have, one
/// may only have had bad luck on a network that drops much, which makes the kernel wait ever longer
/// before it sends again; but three times the limit it may not.
[[nodiscard]] bool IsGone(std::span<const int64_t> silences_ns, int64_t limit_ns);

/// How long a host may be silent until its connections are lost; 0: for ever.
void LimitSilence(int fd, int64_t limit_ns);
/// How long what was sent may stay unacknowledged, or unread behind a full buffer; 0: for ever.
void LimitUnanswered(int fd, int64_t limit_ns);
/// "its host has acknowledged nothing for 13 s (host_timeout_seconds: 12)"
[[nodiscard]] std::string SilenceText(int64_t silent_ns, int64_t limit_ns);

enum class Direction { kSend, kReceive };

/// The bytes of payload for which a stream's buffer has room.
[[nodiscard]] uint64_t BufferOf(int fd, Direction direction);

/// The buffer to ask for if so much is under way; `current` if that will do. Pure.
[[nodiscard]] uint64_t WantedBuffer(uint64_t under_way, uint64_t current);

/// Makes a buffer larger that the kernel has made as large as it ever does, if that bounds what is
/// under way, and if the system lets this process.
void AdaptBuffer(int fd, Direction direction, uint64_t under_way);

/// What every stream gets: a short backlog behind its buffer, so that a stripe goes to the stream
/// that can send it soonest; the buffers, if they have a fixed size; and no limit on how long a
/// peer may leave data unread (it may compute for minutes, or be stopped by a debugger; that its
/// host is alive is seen from its acknowledgements).
void PrepareStream(int fd, uint64_t fixed_buffer);

}  // namespace horoacc
