// Prints a checksum of what the kernels of this CPU make of fixed inputs, for each type, operation
// and number of ranks: the same lines on every architecture (tests/aarch64/run.sh). A NaN counts as
// one, whatever its sign and payload.
#include <cstdio>
#include <string>

#include "base/crc32c.h"
#include "execute/kernels/reduce.h"
#include "execute/reduce_values.h"

using namespace horoacc;

namespace {

constexpr size_t kCount = 1003;  // with a tail behind whole registers

/// By type: the width of its numbers, and the bits of its infinity; 0: it has none.
struct Format {
  size_t bytes;
  uint64_t infinity;
};

Format FormatOf(DType type) {
  switch (type) {
    case DType::kFloat16:
      return {2, 0x7c00};
    case DType::kBFloat16:
      return {2, 0x7f80};
    case DType::kFloat32:
    case DType::kComplex64:
      return {4, 0x7f800000};
    case DType::kFloat64:
    case DType::kComplex128:
      return {8, 0x7ff0000000000000};
    default:
      return {8, 0};
  }
}

void MakeNaNsAlike(DType type, std::vector<char>& numbers) {
  const Format format = FormatOf(type);
  if (format.infinity == 0) return;
  const uint64_t sign = uint64_t{1} << (8 * format.bytes - 1);
  for (size_t at = 0; at < numbers.size(); at += format.bytes) {
    uint64_t bits = 0;
    std::memcpy(&bits, &numbers[at], format.bytes);
    if ((bits & (sign - 1)) <= format.infinity) continue;
    bits = sign - 1;
    std::memcpy(&numbers[at], &bits, format.bytes);
  }
}

}  // namespace

int main() {
  for (int t = 0; t < kDTypeCount; ++t) {
    const auto type = static_cast<DType>(t);
    for (const size_t ranks : {2, 3, 4, 5, 8, 11}) {
      const Sources sources(type, ranks, kCount);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct}) {
        if (!CheckReducible(type, op).ok()) continue;
        uint32_t check = 0;
        const double divisor = op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1;
        for (const Scale& scale :
             {Scale{1, 1, divisor}, Scale{1.0 / 3, 1, divisor}, Scale{0.3, 0.7, divisor}}) {
          std::vector<char> result(kCount * SizeOf(type));
          void* const to = result.data();
          Reduce({sources.pointers(), {&to, 1}, kCount, type, op, scale});
          MakeNaNsAlike(type, result);
          check = Crc32c(std::as_bytes(std::span(result)), check);
        }
        std::printf("%s %s of %zu: %08x\n", std::string(NameOf(type)).c_str(),
                    std::string(NameOf(op)).c_str(), ranks, check);
      }
    }
  }
}
