#pragma once
// The connections of data links come into being while the job runs, when a link is opened: of two
// ranks the lower one dials. Nothing here waits.
#include <cstdint>
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
    SocketAddress own;                     ///< where connections leave from
    std::vector<SocketAddress> addresses;  ///< by rank: where they listen
    int64_t timeout_ns = 0;                ///< how long a peer may be out of reach
    Log log{0, LogLevel::kWarning, false};
  };
  static Result<std::unique_ptr<TcpDialing>> Start(Options options, Fd listener);

  /// Asks for so many more connections to a higher rank. With `must`, one that does not come into
  /// being in time is an error, unless the peer's host took it and the peer says nothing: it may be
  /// stopped, and is dialed until it answers.
  void Dial(int peer, int count, bool must);
  /// Moves everything on; proved connections since the last call. kPeerLost names a peer that
  /// could not be reached.
  Result<std::vector<Admitted>> Step();
  /// Readable when Step has something to do before due_ns().
  [[nodiscard]] int WaitFd() const { return admission_.WaitFd(); }
  /// When Step is to be called without that; INT64_MAX: never.
  [[nodiscard]] int64_t due_ns() const;

 private:
  /// One connection that is wanted.
  struct Attempt {
    int peer = -1;
    int64_t since_ns = 0;
    int64_t due_ns = 0;    ///< when to try; kUnderWay while Admission has it
    bool reached = false;  ///< or given up
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
