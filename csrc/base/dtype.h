#pragma once
// Element types and reduction operations, with the numbers that the C API and Python use.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace horoacc {

enum class DType : uint8_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBFloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kComplex64 = 10,
  kComplex128 = 11,
};
inline constexpr int kDTypeCount = 12;

/// The numbers are Horovod's. Adasum is the only one that is not element by element.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8
};
inline constexpr int kReduceOpCount = 9;

[[nodiscard]] constexpr size_t SizeOf(DType type) {
  constexpr size_t kSizes[kDTypeCount] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return kSizes[static_cast<int>(type)];
}

[[nodiscard]] constexpr std::string_view NameOf(DType type) {
  constexpr std::string_view kNames[kDTypeCount] = {
      "bool",    "uint8",    "int8",    "int16",   "int32",     "int64",
      "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
  return kNames[static_cast<int>(type)];
}

[[nodiscard]] constexpr std::string_view NameOf(ReduceOp op) {
  constexpr std::string_view kNames[] = {"average",     "sum",        "adasum",
                                         "min",         "max",        "product",
                                         "bitwise and", "bitwise or", "bitwise xor"};
  return kNames[static_cast<int>(op)];
}

[[nodiscard]] constexpr bool IsComplex(DType type) {
  return type == DType::kComplex64 || type == DType::kComplex128;
}

/// The type of the real numbers of which an element consists.
[[nodiscard]] constexpr DType RealOf(DType type) {
  if (!IsComplex(type)) return type;
  return type == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
}

[[nodiscard]] constexpr bool IsFloat(DType type) {
  return type >= DType::kFloat16 && type <= DType::kFloat64;
}

/// The factors of a reduction: out = (op over ranks of in * pre) * (post / divisor). `divisor` is
/// the number of ranks for an average and 1 otherwise; an average of integers divides.
struct Scale {
  double pre = 1.0;
  double post = 1.0;
  double divisor = 1.0;
  bool operator==(const Scale&) const = default;
};

}  // namespace horoacc
