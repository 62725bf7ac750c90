#pragma once
// The factors of a reduction on one accumulator; reduce_scale.h does the same to blocks.
#include "execute/kernels/reduce_elements.h"
#include "execute/kernels/reduce_kernels.h"

namespace horoacc::cuda {

/// The factors of a KernelJob, with values that are computed once and not for each element.
struct Factors {
  bool prescales = false;
  bool postscales = false;
  double pre = 1;
  double post = 1;
  double divisor = 1;
  double factor = 1;
  int64_t whole = 0;  ///< divisor of an integer average that has no other factor; 0: not one
};

namespace {

/// Integers and truth values of jobs without factors have element types of their own.
template <typename E>
inline constexpr bool kHasFactors =
    !kIsInteger<typename E::Acc> ||
    (!std::is_same_v<E, Bool> && !std::is_same_v<E, Number<typename E::Stored>>);

/// Of floats, in the accumulator's type; both parts of a complex number.
template <typename T>
HA_INLINE T Times(T x, double factor) {
  if constexpr (kIsComplex<T>) {
    return {Times(x.real, factor), Times(x.imaginary, factor)};
  } else {
    return x * static_cast<T>(factor);
  }
}

/// A product is an element again: of 16-bit floats it is rounded to their type.
template <typename E>
HA_INLINE typename E::Acc Prescaled(const Factors& f, typename E::Acc x) {
  using T = typename E::Acc;
  if (!f.prescales) return x;
  if constexpr (kIsInteger<T>) {
    return Truncate(static_cast<double>(x) * f.pre);
  } else {
    return E::Widen(E::Narrow(Times(x, f.pre)));
  }
}

template <typename T>
HA_INLINE T Postscaled(const Factors& f, T x) {
  if (!f.postscales) return x;
  if constexpr (kIsInteger<T>) {
    return f.whole != 0 ? x / f.whole : Truncate(static_cast<double>(x) * f.post / f.divisor);
  } else {
    return x * static_cast<T>(f.factor);
  }
}

}  // namespace
}  // namespace horoacc::cuda
