#pragma once
// Adasum: a sum that keeps only once what the ranks' vectors have in common
// (S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020).
#include <cstddef>
#include <span>
#include <vector>

#include "base/device.h"
#include "base/dtype.h"
#include "execute/kernels/adasum_kernels.h"

namespace horoacc {

/// Two vectors become (1 - a·b / 2‖a‖²) a + (1 - a·b / 2‖b‖²) b; a vector of zeros counts as it
/// is. More are combined along the balanced binary tree over ranks, as in Reduce. Every node of the
/// tree is a linear combination of the ranks' vectors, so all its products follow from theirs: the
/// vectors are passed over twice, whatever the number of ranks, and none but the result is stored.

/// Products are added up chunk by chunk, so that the bits depend neither on the rank that adds a
/// chunk up nor on the other tensors of the bucket.
inline constexpr size_t kAdasumChunk = size_t{1} << 15;

/// Of every pair of ranks, and of each rank with itself: (0,0), (0,1), (1,1), (0,2), ...
[[nodiscard]] HA_HOST_DEVICE constexpr size_t ProductCount(size_t ranks) {
  return ranks * (ranks + 1) / 2;
}

/// Works out the products of elements [first, last), at most a chunk, with twice float64's digits:
/// a combination that nearly cancels still has a direction.
void AdasumProducts(std::span<const void* const> sources, size_t first, size_t last, DType type,
                    std::span<TwoPartSum> products);

/// The products of a pair from its lanes, as adasum_lanes.h lays them out.
[[nodiscard]] TwoPartSum FoldLanes(const double* lanes);

/// Adds the products of one chunk to those of others.
void AddProducts(std::span<const TwoPartSum> products, std::span<TwoPartSum> sums);

/// From the products of whole vectors to the factor of each rank's vector in the result. What
/// cancels but for float64's rounding counts as zeros. Adasum grows with its input, so that scaling
/// before is scaling after.
[[nodiscard]] std::vector<double> AdasumFactors(std::span<const TwoPartSum> products, size_t ranks,
                                                const Scale& scale = {});

/// Stores the sum over ranks of factor times vector, elements [first, last), in every destination.
/// It is added up in float64 and rounded at the end; a destination may be a source.
void AdasumCombine(std::span<const void* const> sources, std::span<const double> factors,
                   std::span<void* const> destinations, size_t first, size_t last, DType type);

}  // namespace horoacc
