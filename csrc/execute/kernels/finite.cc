#include "execute/kernels/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace horoacc {
namespace {

constexpr size_t kElementsAtOnce = 4096;

// All ones in the exponent: infinite, or no number. Whole blocks without a branch, so that the
// compiler makes vector code of them.
template <typename Bits>
std::optional<size_t> FirstWithFullExponent(const void* data, Bits exponent, size_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const auto at = [&](size_t k) {
    Bits bits;
    std::memcpy(&bits, bytes + k * sizeof bits, sizeof bits);
    return bits;
  };
  for (size_t begin = 0; begin < count; begin += kElementsAtOnce) {
    const size_t end = std::min(begin + kElementsAtOnce, count);
    Bits found = 0;
    for (size_t k = begin; k < end; ++k)
      found |= static_cast<Bits>((at(k) & exponent) == exponent ? 1 : 0);
    if (found == 0) continue;
    for (size_t k = begin; k < end; ++k) {
      if ((at(k) & exponent) == exponent) return k;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<size_t> FirstNotFinite(const void* data, DType type, size_t count) {
  switch (type) {
    case DType::kFloat16:
      return FirstWithFullExponent<uint16_t>(data, 0x7c00, count);
    case DType::kBFloat16:
      return FirstWithFullExponent<uint16_t>(data, 0x7f80, count);
    case DType::kFloat32:
      return FirstWithFullExponent<uint32_t>(data, 0x7f800000, count);
    case DType::kFloat64:
      return FirstWithFullExponent<uint64_t>(data, 0x7ff0000000000000, count);
    case DType::kComplex64:
    case DType::kComplex128: {
      const auto found = FirstNotFinite(data, RealOf(type), 2 * count);
      return found ? std::optional(*found / 2) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace horoacc
