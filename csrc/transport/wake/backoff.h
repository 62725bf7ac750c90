#pragma once
// Waiting for MPI, which cannot wake a thread.
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "base/clock.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

/// Waits between polls of MPI: a short spin, then longer and longer sleeps.
class Backoff {
 public:
  explicit Backoff(const Cancellation& cancellation) : cancellation_(cancellation) {}
  /// Fails if the caller is cancelled.
  Status Wait() {
    const int64_t now = NowNs();
    if (now - start_ < 100 * kMicrosecond) return {};
    if (now - looked_ns_ > 100 * kMillisecond) {
      looked_ns_ = now;
      HA_TRY(cancellation_.Check());
    }
    const timespec pause{0, sleep_ns_};
    ::ppoll(nullptr, 0, &pause, nullptr);
    sleep_ns_ = std::min(sleep_ns_ * 2, kMillisecond);
    return {};
  }

 private:
  Cancellation cancellation_;
  int64_t start_ = NowNs();
  int64_t looked_ns_ = start_;
  int64_t sleep_ns_ = 50 * kMicrosecond;
};

}  // namespace horoacc
