#pragma once
// The monotonic clock of this process stands still, and a test moves it. A test that includes this
// replaces the function by which the whole program asks for the time.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace horoacc::testing {

inline int64_t& StillClock() {
  static int64_t now_ns = 1'000'000'000'000;
  return now_ns;
}

}  // namespace horoacc::testing

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (clock != CLOCK_MONOTONIC) return static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  time->tv_sec = horoacc::testing::StillClock() / 1'000'000'000;
  time->tv_nsec = horoacc::testing::StillClock() % 1'000'000'000;
  return 0;
}
