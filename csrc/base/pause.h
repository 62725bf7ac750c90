#pragma once
// What a core does between two looks at a word that another core is about to move.
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#else
#include <atomic>
#endif

namespace horoacc {

/// Leaves the core's resources to its other hardware thread for a moment.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield" ::: "memory");
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must look again, no more
#endif
}

}  // namespace horoacc
