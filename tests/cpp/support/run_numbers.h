#pragma once
// Numbers for tests of reductions, and how exactly their sums can be told in advance.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "execute/reduce_oracle.h"

namespace horoacc {

struct CaseTensor {
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale;
  uint64_t count = 1000;
};

/// Numbers of which sums, and products of a few, stay in range; both signs.
inline void Fill(std::mt19937& random, const CaseTensor& tensor, std::vector<std::byte>& bytes) {
  oracle::WithType(tensor.type, [&](auto zero) {
    using T = decltype(zero);
    const bool product = tensor.op == ReduceOp::kProduct;
    const auto real = [&] {
      const double fraction = static_cast<double>(random() % 100'000) / 100'000;
      const double sign = random() % 2 == 0 ? 1.0 : -1.0;
      return product ? sign * (0.75 + fraction / 2) : sign * (0.5 + fraction) * 4;
    };
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value{};
      if constexpr (std::is_same_v<T, bool>) {
        value = random() % 4 != 0;
      } else if constexpr (std::is_integral_v<T>) {
        value = static_cast<T>(random());
      } else if constexpr (std::is_floating_point_v<T>) {
        value = static_cast<T>(real());
      } else if constexpr (requires { typename T::value_type; }) {
        using Part = typename T::value_type;
        value = T(static_cast<Part>(real()), static_cast<Part>(real()));
      } else {
        value = T::Round(static_cast<float>(real()));
      }
      std::memcpy(&bytes[at], &value, sizeof value);
    }
  });
}

/// Does the order of the operands show in the bits?
inline bool Rounds(const CaseTensor& tensor) {
  const bool floats = tensor.type >= DType::kFloat16;
  return floats && tensor.op != ReduceOp::kMin && tensor.op != ReduceOp::kMax;
}
inline DType DoubleOf(DType type) { return IsComplex(type) ? DType::kComplex128 : DType::kFloat64; }
inline std::vector<char> ToDouble(const void* from, uint64_t count, DType type) {
  std::vector<char> wide(count * SizeOf(DoubleOf(type)));
  oracle::WithType(type, [&](auto zero) {
    using T = decltype(zero);
    for (uint64_t i = 0; i < count; ++i) {
      const T value = oracle::At<T>(from, i);
      if constexpr (requires { typename T::value_type; }) {
        const std::complex<double> number(value);
        std::memcpy(&wide[i * sizeof number], &number, sizeof number);
      } else {
        double number = 0;
        if constexpr (requires { value.bits; }) {
          number = static_cast<float>(value);
        } else {
          number = static_cast<double>(value);
        }
        std::memcpy(&wide[i * sizeof number], &number, sizeof number);
      }
    }
  });
  return wide;
}
inline std::vector<char> ReduceInDouble(const std::vector<const void*>& sources, uint64_t count,
                                        const CaseTensor& tensor) {
  std::vector<std::vector<char>> wide;
  std::vector<const void*> pointers;
  for (const void* source : sources) wide.push_back(ToDouble(source, count, tensor.type));
  for (const auto& one : wide) pointers.push_back(one.data());
  return oracle::Reduce(pointers, count, DoubleOf(tensor.type), tensor.op, tensor.scale);
}

/// What rounding at every rank can cost, for the numbers of Fill.
inline double AllowedError(const CaseTensor& tensor, uint32_t ranks) {
  const bool brain = tensor.type == DType::kBFloat16;
  const double unit = brain                            ? 0x1p-8
                      : tensor.type == DType::kFloat16 ? 0x1p-11
                      : tensor.type == DType::kFloat64 || tensor.type == DType::kComplex128
                          ? 0x1p-53
                          : 0x1p-24;
  const double factor = std::fabs(tensor.scale.pre * tensor.scale.post / tensor.scale.divisor);
  // Numbers are below 6, or products of P of them below 1.25^P (1.8^P complex).
  const double base = tensor.op == ReduceOp::kProduct
                          ? std::pow(IsComplex(tensor.type) ? 1.8 : 1.25, ranks)
                          : 6.0 * ranks;
  const double pre =
      tensor.op == ReduceOp::kProduct ? std::pow(std::fabs(tensor.scale.pre), ranks - 1) : 1.0;
  return unit * (2.0 * ranks + 4) * base * pre * factor;
}

}  // namespace horoacc
