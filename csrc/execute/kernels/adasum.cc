#include "execute/kernels/adasum.h"

#include <bit>
#include <cmath>
#include <limits>

#include "execute/kernels/adasum_lanes.h"
#include "execute/kernels/reduce_plan.h"

namespace horoacc {
namespace {

/// Of few numbers, so that software arithmetic will do.
#if defined(__SIZEOF_FLOAT128__)
__extension__ using Quad = __float128;
#else
using Quad = long double;  // the same format, on aarch64
static_assert(std::numeric_limits<Quad>::digits == 113);
#endif

class Tree {
 public:
  Tree(std::span<const TwoPartSum> products, size_t ranks)
      : products_(products), factors_(ranks, 1) {}

  /// Combines ranks [first, last).
  void Combine(size_t first, size_t last) {
    if (last - first < 2) return;
    const size_t middle = first + std::bit_floor(last - first - 1);
    Combine(first, middle);
    Combine(middle, last);
    const Quad dot = DotOf(first, middle, middle, last);
    const double left = Factor(dot, first, middle);
    const double right = Factor(dot, middle, last);
    for (size_t r = first; r < last; ++r) factors_[r] *= r < middle ? left : right;
  }

  [[nodiscard]] std::vector<double> Take() && { return std::move(factors_); }

 private:
  [[nodiscard]] Quad Of(size_t a, size_t b) const {
    const TwoPartSum& product = products_[a < b ? b * (b + 1) / 2 + a : a * (a + 1) / 2 + b];
    return static_cast<Quad>(product.high) + product.low;
  }

  /// The product of the combination of [a_first, a_last) with that of [b_first, b_last).
  [[nodiscard]] Quad DotOf(size_t a_first, size_t a_last, size_t b_first, size_t b_last) const {
    Quad sum = 0;
    for (size_t a = a_first; a < a_last; ++a) {
      for (size_t b = b_first; b < b_last; ++b)
        sum += static_cast<Quad>(factors_[a]) * factors_[b] * Of(a, b);
    }
    return sum;
  }

  [[nodiscard]] double Factor(Quad dot, size_t first, size_t last) const {
    constexpr double kRounding = 16 * std::numeric_limits<double>::epsilon();
    double length = 0;
    for (size_t r = first; r < last; ++r)
      length += std::abs(factors_[r]) * std::sqrt(static_cast<double>(Of(r, r)));
    const Quad square = DotOf(first, last, first, last);
    const double least = kRounding * length;
    return square <= static_cast<Quad>(least) * least ? 1.0
                                                      : static_cast<double>(1 - dot / (2 * square));
  }

  std::span<const TwoPartSum> products_;
  std::vector<double> factors_;
};

}  // namespace

void AdasumProducts(std::span<const void* const> sources, size_t first, size_t last, DType type,
                    std::span<TwoPartSum> products) {
  std::vector<double> scratch(ScratchDoubles(sources.size()));
  KernelSetsHere().front().products({.sources = sources.data(),
                                     .source_count = sources.size(),
                                     .first = first,
                                     .last = last,
                                     .type = type,
                                     .scratch = scratch.data(),
                                     .products = products.data()});
}

TwoPartSum FoldLanes(const double* lanes) { return Folded(lanes); }

void AddProducts(std::span<const TwoPartSum> products, std::span<TwoPartSum> sums) {
  for (size_t k = 0; k < sums.size(); ++k) {
    const Quad sum = static_cast<Quad>(sums[k].high) + sums[k].low + products[k].high +
                     static_cast<Quad>(products[k].low);
    sums[k].high = static_cast<double>(sum);
    sums[k].low = static_cast<double>(sum - sums[k].high);
  }
}

std::vector<double> AdasumFactors(std::span<const TwoPartSum> products, size_t ranks,
                                  const Scale& scale) {
  Tree tree(products, ranks);
  tree.Combine(0, ranks);
  std::vector<double> factors = std::move(tree).Take();
  for (double& factor : factors) factor *= scale.pre * scale.post;
  return factors;
}

void AdasumCombine(std::span<const void* const> sources, std::span<const double> factors,
                   std::span<void* const> destinations, size_t first, size_t last, DType type) {
  KernelSetsHere().front().combine({.sources = sources.data(),
                                    .factors = factors.data(),
                                    .source_count = sources.size(),
                                    .destinations = destinations.data(),
                                    .destination_count = destinations.size(),
                                    .first = first,
                                    .last = last,
                                    .type = type});
}

}  // namespace horoacc
