#pragma once
// A clock for stamps that are written often and read seldom: the processor's counter, where its
// rate is constant, costs a fraction of NowNs().
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include <cstdint>

#include "base/clock.h"

namespace horoacc {

class TickClock {
 public:
  /// In ticks, for this clock's `Reading` only.
  [[nodiscard]] int64_t Now() const {
#if defined(__x86_64__)
    if (counts_) return static_cast<int64_t>(__rdtsc());
#elif defined(__aarch64__)
    // As rdtsc, it may be read a little before what stands in front of it is done.
    int64_t ticks = 0;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
    return NowNs();
  }

  /// Converts past ticks to nanoseconds of NowNs().
  class Reading {
   public:
    explicit Reading(const TickClock& clock)
        : ticks_(clock.Now()), ns_(NowNs()), ns_per_tick_(Rate(clock)) {}
    [[nodiscard]] int64_t ToNs(int64_t ticks) const {
      return ns_ - static_cast<int64_t>(static_cast<double>(ticks_ - ticks) * ns_per_tick_);
    }

   private:
    [[nodiscard]] double Rate(const TickClock& clock) const {
      const int64_t ticks = ticks_ - clock.first_ticks_;
      return ticks > 0 ? static_cast<double>(ns_ - clock.first_ns_) / static_cast<double>(ticks)
                       : 0.0;
    }

    int64_t ticks_, ns_;
    double ns_per_tick_;
  };

 private:
  /// Whether the counter's rate is constant and the same on all cores. That of aarch64 always is.
  static bool CountsEvenly() {
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
#else
    return false;
#endif
  }

  bool counts_ = CountsEvenly();
  // In this order: a delay between the two can only make spans longer.
  int64_t first_ns_ = NowNs();
  int64_t first_ticks_ = Now();
};

}  // namespace horoacc
