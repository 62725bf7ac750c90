#pragma once
// Pre- and postscale on blocks of accumulators. Included only by the reduce_<isa>.cc files.
#include "execute/kernels/reduce_elements.h"
#include "execute/kernels/reduce_kernels.h"

namespace horoacc {
namespace {

/// x[i] *= pre for float and double.
template <typename T>
[[gnu::noinline]] void Prescale(const KernelJob& job, size_t count, T* x) {
  const auto factor = static_cast<T>(job.pre);
  const double wide = job.pre;
  if (job.pre_step == ScaleStep::kMultiply) {
    for (size_t i = 0; i < count; ++i) x[i] *= factor;
  } else if (job.pre_step == ScaleStep::kInDouble) {
    for (size_t i = 0; i < count; ++i) x[i] = static_cast<T>(static_cast<double>(x[i]) * wide);
  }
}

[[gnu::noinline]] inline void Prescale(const KernelJob& job, size_t count, int64_t* x) {
  if (job.pre_step == ScaleStep::kNone) return;  // float64 does not hold every int64
  const double pre = job.pre;
  for (size_t i = 0; i < count; ++i) x[i] = Truncate(static_cast<double>(x[i]) * pre);
}

/// x[i] = x[i] * post / divisor for float and double, rounded once to T.
template <typename T>
[[gnu::noinline]] void Postscale(const KernelJob& job, size_t count, T* x) {
  const auto factor = static_cast<T>(job.factor);
  const auto divisor = static_cast<T>(job.divisor);
  const double post = job.post;
  const double wide_divisor = job.divisor;
  switch (job.post_step) {
    case ScaleStep::kNone:
      return;
    case ScaleStep::kMultiply:
      for (size_t i = 0; i < count; ++i) x[i] *= factor;
      return;
    case ScaleStep::kDivide:
      for (size_t i = 0; i < count; ++i) x[i] /= divisor;
      return;
    case ScaleStep::kInDouble:
      for (size_t i = 0; i < count; ++i) {
        x[i] = static_cast<T>(static_cast<double>(x[i]) * post / wide_divisor);
      }
  }
}

/// Integers: an average without a factor divides exactly, anything else goes through float64.
[[gnu::noinline]] inline void Postscale(const KernelJob& job, size_t count, int64_t* x) {
  if (job.post_step == ScaleStep::kNone) return;
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
