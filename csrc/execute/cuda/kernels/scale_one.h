#pragma once
// The factors of a reduction on one accumulator; reduce_scale.h does the same to blocks.
#include "execute/kernels/reduce_elements.h"
#include "execute/kernels/reduce_kernels.h"

namespace horoacc::cuda {

/// The factors of a KernelJob, with values that are computed once and not for each element.
struct Factors {
  ScaleStep pre_step = ScaleStep::kNone;
  ScaleStep post_step = ScaleStep::kNone;
  double pre = 1;
  double post = 1;
  double divisor = 1;
  double factor = 1;
  int64_t whole = 0;  ///< divisor of an integer average that has no other factor; 0: not one
};

namespace {

template <typename T>
HA_INLINE T Prescaled(const Factors& f, T x) {
  if constexpr (kIsInteger<T>) {
    return f.pre_step == ScaleStep::kNone ? x : Truncate(static_cast<double>(x) * f.pre);
  } else {
    if (f.pre_step == ScaleStep::kMultiply) return x * static_cast<T>(f.pre);
    if (f.pre_step == ScaleStep::kInDouble) {
      return static_cast<T>(static_cast<double>(x) * f.pre);
    }
    return x;
  }
}

template <typename T>
HA_INLINE T Postscaled(const Factors& f, T x) {
  if (f.post_step == ScaleStep::kNone) return x;
  const double wide = static_cast<double>(x);
  if constexpr (kIsInteger<T>) {
    return f.whole != 0 ? x / f.whole : Truncate(wide * f.post / f.divisor);
  } else {
    if (f.post_step == ScaleStep::kMultiply) return x * static_cast<T>(f.factor);
    if (f.post_step == ScaleStep::kDivide) return x / static_cast<T>(f.divisor);
    return static_cast<T>(wide * f.post / f.divisor);
  }
}

}  // namespace
}  // namespace horoacc::cuda
