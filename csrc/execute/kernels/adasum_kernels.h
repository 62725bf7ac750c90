#pragma once
// The jobs that adasum.cc gives to the kernels. Internal to the room; see reduce_kernels.h about
// inline functions.
#include <cstddef>

#include "base/dtype.h"

namespace horoacc {

inline constexpr size_t kProductLanes = 8;    ///< of every instruction set, so that the bits agree
inline constexpr size_t kProductBlock = 256;  ///< elements that are widened at a time

/// A sum as the unevaluated sum of two float64, which together have twice the digits of one.
struct TwoPartSum {
  double high = 0;
  double low = 0;
};

struct ProductsJob {
  const void* const* sources;
  size_t source_count;
  size_t first, last;  ///< elements
  DType type;
  double* scratch;       ///< ScratchDoubles(source_count)
  TwoPartSum* products;  ///< one for every pair
};

struct CombineJob {
  const void* const* sources;
  const double* factors;
  size_t source_count;
  void* const* destinations;
  size_t destination_count;
  size_t first, last;  ///< elements
  DType type;
};

/// A block of every source, and the lanes of every pair, high and low.
[[nodiscard]] constexpr size_t ScratchDoubles(size_t sources) {
  return sources * kProductBlock + sources * (sources + 1) * kProductLanes;
}

void ProductsBaseline(const ProductsJob& job);
void ProductsAvx2(const ProductsJob& job);
void ProductsAvx512(const ProductsJob& job);
void CombineBaseline(const CombineJob& job);
void CombineAvx2(const CombineJob& job);
void CombineAvx512(const CombineJob& job);

}  // namespace horoacc
