#pragma once
// Connections that have not proved the secret yet, in both directions, driven together by one
// thread. Unauthenticated peers cost a bounded number of descriptors, bytes and seconds; the first
// one is told of.
#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "transport/net/fd.h"
#include "transport/net/handshake.h"
#include "transport/net/rate_limited_listener.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

/// A connection of which both ends have proved the secret.
struct Admitted {
  Fd fd;
  int peer_rank = -1;
  int peer_size = -1;
  int dialed = -1;  ///< the tag given to Dial, or -1 for one that came to the listener
};

/// A connection given to Dial that came to nothing.
struct FailedDial {
  int tag = -1;
  Error error;  ///< kConfig: somebody answered, and the handshake failed
  /// The connection came into being, and was heard of no more: who is there may be stopped.
  bool silent = false;
};

class Admission {
 public:
  /// `capacity` bounds the unproved connections from outside: when one more comes, the oldest
  /// goes. `timeout_ns` bounds the time that one handshake may take.
  Admission(HandshakeTerms terms, size_t capacity, int64_t timeout_ns, Log log,
            Cancellation cancellation = {})
      : terms_(std::move(terms)),
        capacity_(capacity),
        timeout_ns_(timeout_ns),
        log_(log),
        cancellation_(std::move(cancellation)) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  Status Listen(Fd listener);
  /// Takes over a connection that StartDial made; `tag` (>= 0) comes back with its outcome.
  Status Dial(Fd connecting, int tag);

  struct Outcome {
    std::vector<Admitted> admitted;
    std::vector<FailedDial> failed;
  };
  /// Waits until something happens, at most to the deadline, and says what came of it.
  Result<Outcome> Step(int64_t deadline_ns);
  /// From here on WaitFd is a descriptor that is readable (epoll) when Step has something to do,
  /// but for handshakes that take too long. Before anything is listened to or dialed.
  Status MakeWaitable();
  [[nodiscard]] int WaitFd() const { return epoll_.get(); }
  /// When Step has something to do although WaitFd is not readable; INT64_MAX: never.
  [[nodiscard]] int64_t due_ns() const;

  /// How many connections from outside were dropped, and why the last one was; "" if none.
  [[nodiscard]] std::string TurnedAway() const;

 private:
  struct Pending {
    Fd fd;
    Handshake handshake;
    std::string inbox;
    std::string outbox;
    int64_t expires_ns;
    int tag;
    std::string from;  ///< of one from outside
  };
  Result<Pending> Begin(Fd fd, Handshake::Side side, int tag) const;
  static Result<bool> Advance(Pending& pending);
  Status Watch(const Fd& fd, bool writing, bool anew);
  void Accept();
  void OpenOrShutDoor();
  void TurnAway(const std::string& from, const Error& error);
  void Drop(Pending& pending, const Error& error, Outcome& outcome);

  HandshakeTerms terms_;
  size_t capacity_;
  int64_t timeout_ns_;
  Log log_;
  Cancellation cancellation_;  ///< of Step
  Door door_;
  bool shut_ = false;  ///< the door rests, and is not watched
  Fd epoll_;           ///< empty unless waitable
  std::vector<Pending> pending_;
  uint64_t turned_away_ = 0;
  std::string last_reason_;
  bool told_ = false;
};

/// Whether the other end of an idle connection is gone.
[[nodiscard]] bool HungUp(const Fd& fd);

}  // namespace horoacc
