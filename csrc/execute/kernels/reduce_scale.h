#pragma once
// Pre- and postscale on blocks of accumulators. Included only by the reduce_<isa>.cc files.
#include "execute/kernels/reduce_elements.h"
#include "execute/kernels/reduce_kernels.h"

namespace horoacc {
namespace {

// Factors of floats are rounded to the accumulator's type, and one multiplication applies each:
// Horovod's CPU path does so (ScaleBufferCPUImpl of collective_operations.h, version 0.28.1).

/// x[i] *= pre.
template <typename T>
[[gnu::noinline]] void Prescale(const KernelJob& job, size_t count, T* x) {
  const auto factor = static_cast<T>(job.pre);
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

[[gnu::noinline]] inline void Prescale(const KernelJob& job, size_t count, int64_t* x) {
  const double pre = job.pre;
  for (size_t i = 0; i < count; ++i) x[i] = Truncate(static_cast<double>(x[i]) * pre);
}

/// x[i] *= post / divisor.
template <typename T>
[[gnu::noinline]] void Postscale(const KernelJob& job, size_t count, T* x) {
  const auto factor = static_cast<T>(job.factor);
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

/// Integers: an average without a factor divides exactly, anything else goes through float64.
[[gnu::noinline]] inline void Postscale(const KernelJob& job, size_t count, int64_t* x) {
  const double post = job.post;
  const double divisor = job.divisor;
  const int64_t whole = Truncate(divisor);
  if (post == 1.0 && whole >= 1 && static_cast<double>(whole) == divisor && divisor < 0x1p53) {
    for (size_t i = 0; i < count; ++i) x[i] /= whole;
    return;
  }
  for (size_t i = 0; i < count; ++i) x[i] = Truncate(static_cast<double>(x[i]) * post / divisor);
}

// Both parts of a complex number are scaled.
template <typename T>
[[gnu::noinline]] void Prescale(const KernelJob& job, size_t count, Complex<T>* x) {
  Prescale(job, 2 * count, &x->real);
}
template <typename T>
[[gnu::noinline]] void Postscale(const KernelJob& job, size_t count, Complex<T>* x) {
  Postscale(job, 2 * count, &x->real);
}

}  // namespace
}  // namespace horoacc
