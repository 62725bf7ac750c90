#pragma once
// Waiting for something that can wake nobody.
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace horoacc {

/// Waits between looks at MPI, which can wake nobody: a short spin, then longer and longer sleeps.
class Patience {
 public:
  void Wait() {
    if (NowNs() - start_ < 100 * kMicrosecond) return;
    const timespec pause{0, sleep_ns_};
    ::ppoll(nullptr, 0, &pause, nullptr);
    sleep_ns_ = std::min(sleep_ns_ * 2, kMillisecond);
  }

 private:
  int64_t start_ = NowNs();
  int64_t sleep_ns_ = 50 * kMicrosecond;
};

}  // namespace horoacc
