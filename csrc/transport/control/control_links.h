#pragma once
// The links that carry control messages between ranks. Small, ordered, reliable, non-blocking.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace horoacc {

struct ControlMessage {
  int source = -1;
  std::vector<std::byte> bytes;
};

/// One rank's links to its peers. Driven by one thread at a time (the engine's driver).
/// Messages from one peer arrive in the order they were sent.
class ControlLinks {
 public:
  virtual ~ControlLinks() = default;
  /// Copies `bytes` and returns at once; bytes that the network does not take now are sent by a
  /// later Send or Receive. Receive reports that a peer is gone, after its last message; kPeerLost
  /// here names a peer that does not read.
  virtual Status Send(int peer, std::span<const std::byte> bytes) = 0;
  /// Messages may be kept until Flush from now on, so that a peer gets many at once.
  virtual void Hold() {}
  virtual void Flush() {}
  /// The ranks to which there is a link: it is made by the first message, in either direction.
  [[nodiscard]] virtual std::vector<int> peers() const = 0;
  /// The next message that has arrived, or nothing.
  virtual Result<std::optional<ControlMessage>> Receive() = 0;
  /// Whether the network has not taken everything yet. MPI progresses in this call; links with a
  /// WaitFd in the next Receive.
  [[nodiscard]] virtual bool HasUnsent() { return false; }
  /// A descriptor that is readable when Receive has something to do (epoll), or -1 if this kind of
  /// link must be polled (MPI).
  [[nodiscard]] virtual int WaitFd() const = 0;

  /// In a forked child: closes the connections, which would otherwise hide the parent's death from
  /// its peers. Nothing else may be called there.
  virtual void LeaveToParent() {}
  /// "tcp", "mpi" or "inproc".
  [[nodiscard]] virtual const char* kind() const = 0;
  [[nodiscard]] virtual uint64_t messages_sent() const = 0;
  [[nodiscard]] virtual uint64_t bytes_sent() const = 0;
};

}  // namespace horoacc
