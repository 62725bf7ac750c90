#pragma once
// Elements to reduce: random ones, and among them those that break kernels.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "execute/reduce_oracle.h"

namespace horoacc {

/// Ordinary numbers, and now and then the ones that break kernels.
template <typename Float>
Float AnyFloat(std::mt19937_64& random) {
  constexpr Float kOdd[] = {0.0,
                            -0.0,
                            std::numeric_limits<Float>::infinity(),
                            -std::numeric_limits<Float>::infinity(),
                            std::numeric_limits<Float>::quiet_NaN(),
                            std::numeric_limits<Float>::denorm_min(),
                            -std::numeric_limits<Float>::min(),
                            std::numeric_limits<Float>::max(),
                            65504.0,
                            65520.0,
                            6e-8};
  const uint64_t bits = random();
  const int exponent = bits % 50 == 0 ? static_cast<int>(bits >> 32 & 0x7f) - 64 : 0;
  const Float ordinary = static_cast<Float>(
      std::ldexp(std::uniform_real_distribution<double>(-2, 2)(random), exponent));
  return bits % 64 == 1 ? kOdd[(bits >> 32) % std::size(kOdd)] : ordinary;
}

template <typename T>
T AnyValue(std::mt19937_64& random) {
  if constexpr (requires { typename T::value_type; }) {
    const auto real = AnyFloat<typename T::value_type>(random);
    return {real, AnyFloat<typename T::value_type>(random)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return AnyFloat<T>(random);
  } else if constexpr (std::is_integral_v<T>) {
    const uint64_t bits = random();
    return bits % 2 == 0 ? static_cast<T>(bits >> 8) : static_cast<T>((bits >> 8) % 16);
  } else {
    return T::Round(AnyFloat<float>(random));
  }
}

/// Sources of random elements that never change.
class Sources {
 public:
  Sources(DType type, size_t ranks, size_t count) {
    std::mt19937_64 random(static_cast<uint64_t>(type) * 1000 + ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::vector<char>& buffer = buffers_.emplace_back(count * SizeOf(type));
      oracle::WithType(type, [&](auto zero) {
        // Truth is any byte that is not 0.
        using T = std::conditional_t<std::is_same_v<decltype(zero), bool>, uint8_t, decltype(zero)>;
        for (size_t i = 0; i < count; ++i) {
          T value = AnyValue<T>(random);
          if (type == DType::kBool && random() % (2 * ranks) != 0) value = T{};
          std::memcpy(buffer.data() + i * sizeof(T), &value, sizeof(T));
        }
      });
      pointers_.push_back(buffer.data());
    }
  }
  [[nodiscard]] std::span<const void* const> pointers() const { return pointers_; }

 private:
  std::vector<std::vector<char>> buffers_;
  std::vector<const void*> pointers_;
};

}  // namespace horoacc
