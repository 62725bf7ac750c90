#pragma once
// The pause instruction, for spinning on a word that another core writes.
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#else
#include <atomic>
#endif

namespace horoacc {

/// Yields the core's resources to its other hardware thread for a moment.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on cores without a second hardware thread, which are nearly all; this
  // empties the pipeline, and so takes about as long as x86's pause.
  asm volatile("isb" ::: "memory");
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);  // only makes the compiler reload
#endif
}

}  // namespace horoacc
