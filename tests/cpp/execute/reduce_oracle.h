#pragma once
// What the reduction kernels must compute, written a second time: one element at a time, down the
// definition, without a thought for speed. Shares no code with csrc/execute.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype.h"

namespace horoacc::oracle {

/// A 16-bit float with `kFraction` fraction bits and exponents from `kLeast` to `kGreatest`.
template <int kFraction, int kLeast, int kGreatest>
struct Small {
  uint16_t bits;

  static constexpr int kExponentBits = 15 - kFraction;
  static constexpr int kBias = 1 - kLeast;
  static constexpr unsigned kOnes = (1U << kExponentBits) - 1;

  explicit operator float() const {
    const unsigned exponent = (bits >> kFraction) & kOnes;
    const unsigned fraction = bits & ((1U << kFraction) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == kOnes) {
      if (fraction != 0) return std::numeric_limits<float>::quiet_NaN();
      return static_cast<float>(sign * std::numeric_limits<double>::infinity());
    }
    const double whole = exponent == 0 ? fraction : fraction + (1U << kFraction);
    const int power = (exponent == 0 ? kLeast : static_cast<int>(exponent) - kBias) - kFraction;
    return static_cast<float>(sign * std::ldexp(whole, power));
  }

  static Small Round(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const auto with = [sign](unsigned magnitude) {
      return Small{static_cast<uint16_t>(sign | magnitude)};
    };
    if (std::isnan(value)) return with(kOnes << kFraction | 1U << (kFraction - 1));
    const unsigned infinity = kOnes << kFraction;
    if (std::isinf(value)) return with(infinity);
    if (value == 0) return with(0);
    const double magnitude = std::fabs(static_cast<double>(value));
    const int exponent = std::max(std::ilogb(magnitude), kLeast);
    // nearbyint rounds halves to even in the default rounding mode.
    const double places = std::nearbyint(std::ldexp(magnitude, kFraction - exponent));
    // A fraction that rounds up to the next power of two carries into the exponent by itself.
    const auto code =
        static_cast<unsigned>(places) + (static_cast<unsigned>(exponent + kBias - 1) << kFraction);
    return with(exponent > kGreatest || code > infinity ? infinity : code);
  }
};
using Half = Small<10, -14, 15>;
using BHalf = Small<7, -126, 127>;

template <typename T>
T Narrow(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else
    return T::Round(value);
}

inline int64_t Truncate(double x) {
  if (std::isnan(x)) return 0;
  const double whole = std::trunc(x);
  if (whole >= 9223372036854775808.0) return std::numeric_limits<int64_t>::max();
  if (whole <= -9223372036854775808.0) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(whole);
}

// volatile: no compiler may contract a product and a sum into one rounding here.
template <typename T>
T Times(T a, T b) {
  volatile T product = a * b;
  return product;
}

template <typename T>
T Apply(ReduceOp op, T a, T b) {
  if constexpr (std::is_same_v<T, int64_t>) {
    const auto x = static_cast<uint64_t>(a);
    const auto y = static_cast<uint64_t>(b);
    if (op == ReduceOp::kMin) return std::min(a, b);
    if (op == ReduceOp::kMax) return std::max(a, b);
    return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
      return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
    }
    return op == ReduceOp::kProduct ? a * b : a + b;
  } else {
    using Part = typename T::value_type;
    if (op != ReduceOp::kProduct) return {a.real() + b.real(), a.imag() + b.imag()};
    const Part real = Times(a.real(), b.real()) - Times(a.imag(), b.imag());
    const Part imag = Times(a.real(), b.imag()) + Times(a.imag(), b.real());
    return {real, imag};
  }
}

/// The balanced tree over ranks: the left half is the largest power of two below the number.
template <typename T, typename Leaf>
T Tree(ReduceOp op, size_t first, size_t ranks, const Leaf& leaf) {
  if (ranks == 1) return leaf(first);
  size_t left = 1;
  while (2 * left < ranks) left = 2 * left;
  return Apply(op, Tree<T>(op, first, left, leaf), Tree<T>(op, first + left, ranks - left, leaf));
}

template <typename T>
T Post(T acc, const Scale& scale) {
  return Times(acc, static_cast<T>(scale.post / scale.divisor));
}

inline int64_t Post(int64_t acc, const Scale& scale) {
  if (scale.post == 1.0) return acc / static_cast<int64_t>(scale.divisor);
  return Truncate(static_cast<double>(acc) * scale.post / scale.divisor);
}

template <typename T>
T At(const void* buffer, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(buffer) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
T Element(std::span<const void* const> sources, size_t i, ReduceOp op, const Scale& scale) {
  if constexpr (std::is_same_v<T, bool>) {
    const bool all = op == ReduceOp::kMin || op == ReduceOp::kProduct;
    bool truth = all;
    for (const void* source : sources) {
      const bool set = At<uint8_t>(source, i) != 0 && Truncate(scale.pre) != 0;
      truth = all ? truth && set : truth || set;
    }
    return truth && Truncate(scale.post / scale.divisor) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    const auto leaf = [&](size_t rank) {
      const T x = At<T>(sources[rank], i);
      return scale.pre == 1.0 ? int64_t{x} : Truncate(static_cast<double>(x) * scale.pre);
    };
    return static_cast<T>(Post(Tree<int64_t>(op, 0, sources.size(), leaf), scale));
  } else if constexpr (std::is_same_v<T, double>) {
    const auto leaf = [&](size_t rank) { return At<T>(sources[rank], i) * scale.pre; };
    return Post(Tree<double>(op, 0, sources.size(), leaf), scale);
  } else if constexpr (requires { typename T::value_type; }) {
    using Part = typename T::value_type;
    const auto leaf = [&](size_t rank) {
      const T x = At<T>(sources[rank], i);
      const auto pre = static_cast<Part>(scale.pre);
      return T(x.real() * pre, x.imag() * pre);
    };
    const T acc = Tree<T>(op, 0, sources.size(), leaf);
    return {Post(acc.real(), scale), Post(acc.imag(), scale)};
  } else {
    const auto leaf = [&](size_t rank) {
      const auto x = static_cast<float>(At<T>(sources[rank], i));
      return static_cast<float>(Narrow<T>(x * static_cast<float>(scale.pre)));
    };
    return Narrow<T>(Post(Tree<float>(op, 0, sources.size(), leaf), scale));
  }
}

/// Calls `use` with a value of the C++ type of `type`.
template <typename Use>
auto WithType(DType type, Use use) {
  switch (type) {
    case DType::kBool:
      return use(bool{});
    case DType::kUInt8:
      return use(uint8_t{});
    case DType::kInt8:
      return use(int8_t{});
    case DType::kInt16:
      return use(int16_t{});
    case DType::kInt32:
      return use(int32_t{});
    case DType::kInt64:
      return use(int64_t{});
    case DType::kFloat16:
      return use(Half{});
    case DType::kBFloat16:
      return use(BHalf{});
    case DType::kFloat32:
      return use(float{});
    case DType::kFloat64:
      return use(double{});
    case DType::kComplex64:
      return use(std::complex<float>{});
    case DType::kComplex128:
      break;
  }
  return use(std::complex<double>{});
}

/// The bytes that `count` elements of every destination must have.
inline std::vector<char> Reduce(std::span<const void* const> sources, size_t count, DType type,
                                ReduceOp op, const Scale& scale) {
  std::vector<char> out(count * SizeOf(type));
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < count; ++i) {
      const T value = Element<T>(sources, i, op, scale);
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return out;
}

template <typename T>
bool SameValue(T a, T b) {
  if constexpr (requires { typename T::value_type; }) {
    return SameValue(a.real(), b.real()) && SameValue(a.imag(), b.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
  } else if constexpr (std::is_integral_v<T>) {
    return a == b;
  } else {
    return a.bits == b.bits ||
           (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(b)));
  }
}

/// Index of the first element that differs in any bit (NaNs are alike), or `count`.
inline size_t FirstDifference(const void* actual, const void* expected, size_t count, DType type) {
  if (count == 0 || std::memcmp(actual, expected, count * SizeOf(type)) == 0) return count;
  return WithType(type, [&](auto zero) {
    using T = std::conditional_t<std::is_same_v<decltype(zero), bool>, uint8_t, decltype(zero)>;
    size_t i = 0;
    while (i < count && SameValue(At<T>(actual, i), At<T>(expected, i))) ++i;
    return i;
  });
}

}  // namespace horoacc::oracle
