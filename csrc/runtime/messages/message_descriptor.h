#pragma once
// A message on its way between two ranks of a host, and the stack on which it reaches its receiver.
#include <atomic>
#include <cstdint>
#include <limits>

namespace horoacc {

inline constexpr uint64_t kSmallMessageBytes =
    64 << 10;  ///< travels as a copy: the sender need not wait
inline constexpr uint64_t kMessageWindow = 256
                                           << 10;  ///< of private memory, so as to stay in cache
inline constexpr uint64_t kMessageWindows = 4;     ///< on their way at a time

/// In `reply`: the receive was given up in the middle of the message.
inline constexpr uint64_t kGaveUpReceiving = std::numeric_limits<uint64_t>::max();

enum class MessageState : uint32_t {
  kOpen,       ///< no receive has matched it
  kClaimed,    ///< a receive has; the sender shows what lies in private memory
  kDone,       ///< the receiver is through with it: the sender may use its memory again
  kRefused,    ///< as kDone; the receive has another size, see `reply`
  kWithdrawn,  ///< the sender gave up before a receive matched; the receiver makes it kDone
};

/// Lies in the sender's memory, with a small message's bytes behind it. The sender writes all but
/// `taken` and `reply` before it posts it, and `shown` and `windows` afterwards too.
struct MessageDescriptor {
  std::atomic<uint64_t> next{
      0};  ///< where the message descriptor lies that was posted before, while on the stack
  uint32_t process_set = 0;
  int32_t tag = 0;
  int32_t from = 0;  ///< global rank
  uint64_t bytes = 0;
  uint64_t data = 0;  ///< offset in the sender's memory, or kPrivate: passes through windows
  std::atomic<MessageState> state{MessageState::kOpen};
  std::atomic<uint64_t> windows{0};            ///< offset of the window ring in the sender's memory
  alignas(64) std::atomic<uint64_t> shown{0};  ///< windows copied in
  alignas(64) std::atomic<uint64_t> taken{0};  ///< windows copied out
  std::atomic<uint64_t> reply{0};              ///< kRefused: bytes that the receive had room for
};

/// Where a message descriptor lies, in one word: 0 is nowhere.
struct DescriptorPlace {
  uint32_t local_rank;
  uint64_t offset;
  [[nodiscard]] uint64_t word() const { return uint64_t{local_rank + 1} << 48 | offset; }
  [[nodiscard]] static DescriptorPlace From(uint64_t word) {
    return {static_cast<uint32_t>(word >> 48) - 1, word & 0xffffffffffff};
  }
};

}  // namespace horoacc
