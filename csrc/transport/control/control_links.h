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
  /// Copies `bytes` and returns at once; what the network will not take now is kept and sent by
  /// a later Send or Receive. That a peer has gone is for Receive to say, behind its last words;
  /// kPeerLost names one that does not read, or to whom there is no link.
  virtual Status Send(int peer, std::span<const std::byte> bytes) = 0;
  /// What is sent from now on may be kept until Flush: so many messages for a peer go at once.
  virtual void Hold() {}
  virtual void Flush() {}
  /// The next message that has arrived, or nothing.
  virtual Result<std::optional<ControlMessage>> Receive() = 0;
  /// Is something kept that the network has not taken yet? MPI moves it on in this call; with
  /// links that have a WaitFd the next Receive does.
  [[nodiscard]] virtual bool HasUnsent() { return false; }
  /// A descriptor that becomes readable when Receive has something to do (epoll), or -1 if this
  /// kind of link can only be asked again and again (MPI).
  [[nodiscard]] virtual int WaitFd() const = 0;

  /// In a forked child: lets go of the connections, which would outlive the parent in it, so that
  /// peers would not notice its death. Nothing else may be called there.
  virtual void LeaveToParent() {}
  /// "tcp", "mpi" or "inproc".
  [[nodiscard]] virtual const char* kind() const = 0;
  [[nodiscard]] virtual uint64_t messages_sent() const = 0;
  [[nodiscard]] virtual uint64_t bytes_sent() const = 0;
};

}  // namespace horoacc
