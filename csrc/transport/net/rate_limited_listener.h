#pragma once
// A listening socket with limits against unauthenticated peers: it pauses when they connect too
// fast, and does not spin when the process is out of descriptors.
#include <cstdint>
#include <string>

#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

class RateLimitedListener {
 public:
  void Open(Fd listener);
  [[nodiscard]] bool open() const { return static_cast<bool>(listener_); }
  [[nodiscard]] const Fd& fd() const { return listener_; }

  struct PendingConnection {
    Fd fd;                 ///< empty: none is waiting
    bool refused = false;  ///< one was waiting, but there is no descriptor for it
  };
  PendingConnection Accept();

  /// Counts an unauthenticated peer. Token bucket: burst 256, refill 500/s.
  void Charge(int64_t now_ns);
  /// Accepts nothing until then; in the past if it does not pause.
  [[nodiscard]] int64_t paused_until_ns() const { return paused_until_ns_; }

 private:
  void TakeSpare();

  Fd listener_;
  Fd spare_;  ///< closed for a moment so that a connection can be accepted and closed
  int64_t paid_until_ns_ = 0;
  int64_t paused_until_ns_ = 0;
};

/// "10.0.0.7:40312", or "an unknown address".
[[nodiscard]] std::string NameOfPeer(const Fd& fd);

}  // namespace horoacc
