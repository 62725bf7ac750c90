#pragma once
// Connections that have not proved the secret yet, in both directions, driven together by one
// thread. Unauthenticated peers cost a bounded number of descriptors, bytes and seconds; the first
// one is logged.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "transport/net/fd.h"
#include "transport/net/handshake.h"
#include "transport/net/rate_limited_listener.h"
#include "transport/net/socket.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

/// For ports that are open only while the ranks rendezvous: how long a handshake may take, and how
/// many unauthenticated peers are served at once, besides the ranks.
inline constexpr int64_t kHandshakeTimeoutNs = 10 * kSecond;
inline constexpr size_t kUnauthenticatedPeers = 64;

/// A connection of which both ends have proved the secret.
struct Admitted {
  Fd fd;
  int peer_rank = -1;
  int peer_size = -1;
  int dialed = -1;  ///< the tag given to Dial, or -1 if the listener accepted it
  LinkKeys keys{};
};

/// A connection given to Dial that failed.
struct FailedDial {
  int tag = -1;
  Error error;          ///< kConfig: the peer answered, and the handshake failed
  bool silent = false;  ///< connected, but the peer sent nothing: it may be stopped
};

class Admission {
 public:
  /// `capacity`: unproved connections that were accepted; one more replaces the oldest.
  /// `timeout_ns`: how long a handshake may take.
  Admission(HandshakeTerms terms, size_t capacity, int64_t timeout_ns, Log log,
            Cancellation cancellation = {})
      : terms_(std::move(terms)),
        capacity_(capacity),
        timeout_ns_(timeout_ns),
        log_(std::move(log)),
        cancellation_(std::move(cancellation)) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  Status Listen(Fd listener);
  /// Takes over a connection that StartDial made; `tag` (>= 0) comes back with its outcome.
  Status Dial(Fd connecting, int tag);
  /// Dials once, where nothing else is dialed, and waits for the outcome. If the attempt failed,
  /// `reason` says why.
  Result<std::optional<Admitted>> DialAndWait(const SocketAddress& address, int64_t deadline_ns,
                                              std::string& reason);

  struct Outcome {
    std::vector<Admitted> admitted;
    std::vector<FailedDial> failed;
  };
  /// Waits until something happens, at most until the deadline.
  Result<Outcome> Step(int64_t deadline_ns);
  /// Makes WaitFd a descriptor that is readable (epoll) when Step has something to do, except to
  /// end slow handshakes (due_ns). Call it before Listen and Dial.
  Status MakeWaitable();
  [[nodiscard]] int WaitFd() const { return epoll_.get(); }
  /// When Step has something to do although WaitFd is not readable; INT64_MAX: never.
  [[nodiscard]] int64_t due_ns() const;

  /// As ControlLinks::LeaveToParent: a port that a forked child held open would let peers wait.
  void LeaveToParent() const {
    listener_.fd().LeaveToParent();
    for (const Pending& pending : pending_) pending.fd.LeaveToParent();
  }

  /// How many accepted connections were dropped, and why the last one was; "" if none.
  [[nodiscard]] std::string TurnedAway() const;

 private:
  struct Pending {
    Fd fd;
    Handshake handshake;
    std::string inbox;
    std::string outbox;
    int64_t expires_ns;
    int tag;
    std::string from;  ///< the peer's address, if the connection was accepted
  };
  Result<Pending> Begin(Fd fd, Handshake::Side side, int tag) const;
  static Result<bool> Advance(Pending& pending);
  Status Watch(const Fd& fd, bool writing, bool anew);
  void Accept();
  void PauseOrResume();
  void TurnAway(const std::string& from, const Error& error);
  void Drop(Pending& pending, const Error& error, Outcome& outcome);

  HandshakeTerms terms_;
  size_t capacity_;
  int64_t timeout_ns_;
  Log log_;
  Cancellation cancellation_;  ///< of Step
  RateLimitedListener listener_;
  bool paused_ = false;  ///< the listener pauses, and is not watched
  Fd epoll_;             ///< empty unless waitable
  std::vector<Pending> pending_;
  uint64_t turned_away_ = 0;
  std::string last_reason_;
  bool logged_ = false;
};

/// Whether the other end of an idle connection is gone.
[[nodiscard]] bool HungUp(const Fd& fd);

}  // namespace horoacc
