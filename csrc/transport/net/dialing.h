#pragma once
// Makes connections between ranks while the job runs, when a link is opened. No function waits.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/net/admission.h"
#include "transport/net/socket.h"

namespace horoacc {

class Dialing {
 public:
  struct Options {
    HandshakeTerms terms;
    std::optional<SocketAddress> own;  ///< local address of outgoing connections; none: any
    /// A rank's listener; nothing as long as it is not known. Called again and again until it is.
    std::function<std::optional<SocketAddress>(int)> address_of;
    int64_t timeout_ns = 0;           ///< how long a peer may be out of reach
    std::function<bool(int)> needed;  ///< whether a link leads to the rank
    size_t ranks_expected = 0;        ///< that dial at once, beside unauthenticated peers
    Log log{0, LogLevel::kWarning, false};
  };
  static Result<std::unique_ptr<Dialing>> Start(Options options, Fd listener);

  /// Asks for `count` more connections to a rank, as long as they are needed. With `must`, a
  /// connection that fails until the timeout is an error, unless the peer's host accepted it and
  /// the peer sends nothing: it may be stopped, and is dialed until it answers.
  void Dial(int peer, int count, bool must) { Dial(peer, count, must, options_.timeout_ns); }
  /// The same, with a timeout of its own.
  void Dial(int peer, int count, bool must, int64_t timeout_ns);
  /// Progresses dials and handshakes; returns the proved connections. kPeerLost names a peer that
  /// could not be reached, once; the next call goes on with the others. Time in which a peer's
  /// address is not known does not count: the heartbeat monitor watches those that would tell it.
  Result<std::vector<Admitted>> Step();
  /// A descriptor that is readable when Step has work before due_ns().
  [[nodiscard]] int WaitFd() const { return admission_.WaitFd(); }
  /// When to call Step although WaitFd is not readable; INT64_MAX: never.
  [[nodiscard]] int64_t due_ns() const;
  void LeaveToParent() const { admission_.LeaveToParent(); }
  /// Whether the latest dial of a rank failed, as where nobody listens any more.
  [[nodiscard]] bool Failed(int peer) const;
  /// Why the latest dial of a rank failed, or connections were refused; "": none was.
  [[nodiscard]] std::string WhyNot(int peer) const;

 private:
  /// One connection that is wanted.
  struct Attempt {
    int peer = -1;
    int64_t since_ns = 0;
    int64_t timeout_ns = 0;
    int64_t due_ns = 0;    ///< when to try; kUnderWay while Admission has it
    bool reached = false;  ///< connected, or given up
    bool must = true;
    bool refused = false;  ///< the peer has answered and refused
    std::string reason{};  ///< why it failed last
  };
  static constexpr int64_t kUnderWay = INT64_MAX;

  explicit Dialing(Options options);
  void Try(Attempt& attempt, int tag);
  void Again(Attempt& attempt, std::string reason);
  [[nodiscard]] std::string Way(int peer) const;

  Options options_;
  Admission admission_;
  std::vector<Attempt> attempts_;  ///< the index is Admission's tag
  std::optional<Error> unreachable_;
};

}  // namespace horoacc
