#pragma once
// The products of a pair of sources, in lanes with twice the digits. Included by the loops of CPUs
// (adasum_blocks.h) and of GPUs, whose bits agree.
#include "execute/kernels/adasum_kernels.h"
#include "execute/kernels/reduce_elements.h"

namespace horoacc {

/// Of a pair: kProductLanes high parts, then as many low ones. Element k of a chunk is added to
/// lane k % kProductLanes, behind the elements before it.
inline constexpr size_t kPairDoubles = 2 * kProductLanes;

namespace {

/// Adds a·b to a sum; of single numbers, or of vectors. What rounding takes from a sum (D. Knuth)
/// and from a product (T. Dekker) is a float64 itself, and is added up apart (T. Ogita, S. Rump and
/// S. Oishi, "Accurate Sum and Dot Product", 2005). `kExact`: so are the products, of narrower
/// numbers.
template <bool kExact, typename V>
HA_INLINE void AddProduct(const V& a, const V& b, V* high, V* low) {
  constexpr double kSplit = (1 << 27) + 1;
  const V product = a * b;
  if constexpr (!kExact) {
    const V a_scaled = a * kSplit;
    const V b_scaled = b * kSplit;
    const V a_high = a_scaled - (a_scaled - a);
    const V b_high = b_scaled - (b_scaled - b);
    const V a_low = a - a_high;
    const V b_low = b - b_high;
    *low += ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
  }
  const V sum = *high + product;
  const V added = sum - *high;
  *low += (*high - (sum - added)) + (product - added);
  *high = sum;
}

/// Whether products of the element type are exact in float64.
template <typename E>
inline constexpr bool kExactProducts = sizeof(typename E::Acc) < sizeof(double);

/// Adds up the lanes of a pair.
HA_INLINE TwoPartSum Folded(const double* lanes) {
  TwoPartSum folded;
  for (size_t lane = 0; lane < kProductLanes; ++lane) {
    const double sum = folded.high + lanes[lane];
    const double added = sum - folded.high;
    folded.low += (folded.high - (sum - added)) + (lanes[lane] - added);
    folded.low += lanes[kProductLanes + lane];
    folded.high = sum;
  }
  return folded;
}

}  // namespace
}  // namespace horoacc
