#pragma once
// Element types and operations of the kernels. Included by the reduce_<isa>.cc files, and by the
// kernels of GPUs (cuda/).
//
// Everything in the kernel headers lies in an anonymous namespace: each instruction set has its
// own copy, and none of them can end up serving a CPU that lacks the instructions.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "execute/kernels/half.h"

namespace horoacc {
namespace {

/// An element in memory; buffers need not be aligned, and hold whatever type the user had.
template <typename T>
struct [[gnu::packed, gnu::may_alias]] Raw {
  T value;
};

template <typename T>
struct Complex {
  T real, imaginary;
};
template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<Complex<T>> = true;

/// Accumulators that are float or double, or vectors of these.
template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;

/// Wraps on overflow: unsigned, and at least as wide as int, which is what small types become.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 8), uint32_t, uint64_t>;

// Every kernel set gives the same bits, but for one thing: which of two NaNs a sum or a product
// hands on is up to the compiler, so the payload of a NaN means nothing.
struct Sum {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    if constexpr (kIsInteger<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    if constexpr (kIsInteger<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else if constexpr (kIsComplex<T>) {  // on GPUs; CPUs have loops for it (reduce_blocks.h)
      return {a.real * b.real - a.imaginary * b.imaginary,
              a.real * b.imaginary + a.imaginary * b.real};
    } else {
      return a * b;
    }
  }
};

/// A NaN wins over every number; of equal values (-0 and +0) the lower rank's stays.
struct Min {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    if constexpr (kIsInteger<T>) return b < a ? b : a;
    return (b < a) | (b != b) ? b : a;
  }
};

struct Max {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    if constexpr (kIsInteger<T>) return a < b ? b : a;
    return (a < b) | (b != b) ? b : a;
  }
};

/// Of integers only.
struct BitAnd {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <typename T>
  HA_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

/// One of the element types: how it lies in memory, and what it is accumulated in.
template <typename T>
struct Number {
  using Stored = T;
  using Acc = T;
  HA_INLINE static Acc Widen(Stored x) { return x; }
  HA_INLINE static Stored Narrow(Acc x) { return x; }
};

struct Float16 {
  using Stored = uint16_t;
  using Acc = float;
  HA_INLINE static Acc Widen(Stored x) { return HalfToFloat(x); }
  HA_INLINE static Stored Narrow(Acc x) { return FloatToHalf(x); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Acc = float;
  HA_INLINE static Acc Widen(Stored x) { return BFloat16ToFloat(x); }
  HA_INLINE static Stored Narrow(Acc x) { return FloatToBFloat16(x); }
};

/// Any non-zero byte is true; false and true are written as 0 and 1.
struct Bool {
  using Stored = uint8_t;
  using Acc = uint8_t;
  HA_INLINE static Acc Widen(Stored x) { return x != 0; }
  HA_INLINE static Stored Narrow(Acc x) { return x; }
};

/// Truncates toward zero; stops at the ends of int64, and a NaN becomes 0.
HA_INLINE int64_t Truncate(double x) {
  if (x >= 0x1p63) return INT64_MAX;
  if (x < -0x1p63) return INT64_MIN;
  return x == x ? static_cast<int64_t>(x) : 0;
}

/// An integer of a job that scales: accumulated in int64, so that an average of int8 does not wrap
/// before the division. What remains too large wraps when it is stored.
template <typename T>
struct ScaledInteger {
  using Stored = T;
  using Acc = int64_t;
  HA_INLINE static Acc Widen(Stored x) { return x; }
  HA_INLINE static Stored Narrow(Acc x) { return static_cast<Stored>(x); }
};

/// A bool of a job that scales: the number 0 or 1, and what is not 0 in the end is true.
struct ScaledBool {
  using Stored = uint8_t;
  using Acc = int64_t;
  HA_INLINE static Acc Widen(Stored x) { return x != 0; }
  HA_INLINE static Stored Narrow(Acc x) { return x != 0; }
};

}  // namespace
}  // namespace horoacc
