#pragma once
// The one clock: CLOCK_MONOTONIC in nanoseconds. A wall clock that jumps must not end a job.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace horoacc {

[[nodiscard]] inline int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

inline constexpr int64_t kMicrosecond = 1'000;
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

/// In nanoseconds, at most a century, so that adding a point of time does not overflow.
[[nodiscard]] inline int64_t FromSeconds(double seconds) {
  constexpr double kCentury = 100.0 * 365 * 24 * 3600;
  return static_cast<int64_t>(std::min(seconds, kCentury) * 1e9);
}

/// So many seconds from now; negative: never.
[[nodiscard]] inline int64_t DeadlineIn(double seconds) {
  return seconds < 0 ? std::numeric_limits<int64_t>::max() : NowNs() + FromSeconds(seconds);
}

/// Seconds for a message: with up to six decimals, without trailing zeros.
[[nodiscard]] inline std::string SecondsText(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace horoacc
