#pragma once
// A listening socket that unauthenticated peers cannot wear out: it rests when they come too fast,
// and does not spin when the process is out of descriptors.
#include <cstdint>
#include <string>

#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

class Door {
 public:
  Status Open(Fd listener);
  [[nodiscard]] bool open() const { return static_cast<bool>(listener_); }
  [[nodiscard]] const Fd& listener() const { return listener_; }

  struct Guest {
    Fd fd;                 ///< empty: nobody is there
    bool refused = false;  ///< somebody was, but there is no descriptor for them
  };
  Guest Accept();

  /// Who came was a unauthenticated peer. 256 of them in a burst go unpunished, and 500 a second.
  void Charge(int64_t now_ns);
  /// Until when nobody is let in; in the past if the door is open.
  [[nodiscard]] int64_t rests_until_ns() const { return rests_until_ns_; }

 private:
  void TakeSpare();

  Fd listener_;
  Fd spare_;  ///< given up for a moment so that a connection can be taken and closed
  int64_t paid_until_ns_ = 0;
  int64_t rests_until_ns_ = 0;
};

/// "10.0.0.7:40312", or what else can be said of who is at the other end.
[[nodiscard]] std::string NameOfPeer(const Fd& fd);

}  // namespace horoacc
