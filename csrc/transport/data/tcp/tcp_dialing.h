#pragma once
// Makes the connections of data links while the job runs, when a link is opened. No function waits.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/net/admission.h"
#include "transport/net/socket.h"

namespace horoacc {

class TcpDialing {
 public:
  struct Options {
    HandshakeTerms terms;
    SocketAddress own;                     ///< local address of outgoing connections
    std::vector<SocketAddress> addresses;  ///< by rank: its listener's
    int64_t timeout_ns = 0;                ///< how long a peer may be out of reach
    std::function<bool(int)> needed;       ///< whether a link leads to the rank
    Log log{0, LogLevel::kWarning, false};
  };
  static Result<std::unique_ptr<TcpDialing>> Start(Options options, Fd listener);

  /// Asks for `count` more connections to a rank, as long as they are needed. With `must`, a
  /// connection that fails until the timeout is an error, unless the peer's host accepted it and
  /// the peer sends nothing: it may be stopped, and is dialed until it answers.
  void Dial(int peer, int count, bool must);
  /// Progresses dials and handshakes; returns the proved connections. kPeerLost names a peer that
  /// could not be reached.
  Result<std::vector<Admitted>> Step();
  /// A descriptor that is readable when Step has work before due_ns().
  [[nodiscard]] int WaitFd() const { return admission_.WaitFd(); }
  /// When to call Step although WaitFd is not readable; INT64_MAX: never.
  [[nodiscard]] int64_t due_ns() const;

 private:
  /// One connection that is wanted.
  struct Attempt {
    int peer = -1;
    int64_t since_ns = 0;
    int64_t due_ns = 0;    ///< when to try; kUnderWay while Admission has it
    bool reached = false;  ///< connected, or given up
    bool must = true;
  };
  static constexpr int64_t kUnderWay = INT64_MAX;

  explicit TcpDialing(Options options);
  Status Try(Attempt& attempt, int tag);
  Status Again(Attempt& attempt, const std::string& reason);

  Options options_;
  Admission admission_;
  std::vector<Attempt> attempts_;  ///< the index is Admission's tag
};

}  // namespace horoacc
