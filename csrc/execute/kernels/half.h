#pragma once
// float16 and bfloat16 in software: the bits that F16C and an fp32 shift give, on every CPU.
//
// The functions are always inlined and call nothing of the standard library, so that a file that
// is compiled for one instruction set can use them without lending its machine code to others.
#include <cstdint>

#include "base/device.h"

namespace horoacc {

/// Widens IEEE 754 binary16. Exact; a signalling NaN becomes quiet, as with vcvtph2ps.
[[nodiscard]] HA_INLINE constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // A subnormal is its fraction times 2^-24, which float32 holds as a normal number.
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
  const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
  const uint32_t special = 0x7f800000u | (magnitude << 13) | quiet;
  const uint32_t bits = magnitude < 0x0400u   ? __builtin_bit_cast(uint32_t, small)
                        : magnitude < 0x7c00u ? normal
                                              : special;
  return __builtin_bit_cast(float, sign | bits);
}

/// Rounds to IEEE 754 binary16, nearest even; a NaN keeps its sign and upper payload.
[[nodiscard]] HA_INLINE constexpr uint16_t FloatToHalf(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // 0.5 has the same last place (2^-24) as a subnormal half: the addition does the rounding.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
  const uint32_t small = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000u;
  const uint32_t normal =
      (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t half = magnitude > 0x7f800000u    ? nan
                        : magnitude >= 0x477ff000u ? 0x7c00u  // 65520 and above round to infinity
                        : magnitude >= 0x38800000u ? normal
                                                   : small;
  return static_cast<uint16_t>(sign | half);
}

/// Widens bfloat16, which is the upper half of a float32. Exact.
[[nodiscard]] HA_INLINE constexpr float BFloat16ToFloat(uint16_t half) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
}

/// Rounds to bfloat16, nearest even; a NaN stays a NaN where rounding up could make an infinity.
[[nodiscard]] HA_INLINE constexpr uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t nan = bits | 0x00400000u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((is_nan ? nan : rounded) >> 16);
}

}  // namespace horoacc
