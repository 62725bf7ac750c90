#pragma once
// Folds operands, which a leaf supplies, along the balanced binary tree over their numbers: n of
// them split at the largest power of two below n.
#include "base/device.h"
#include "base/dtype.h"
#include "execute/kernels/reduce_elements.h"

namespace horoacc::cuda {

inline constexpr uint32_t kMostSources = 64;

namespace {

/// The accumulators of a run.
template <typename Acc, size_t N>
struct Lanes {
  Acc lane[N];
};

/// An operation of reduce_elements.h on the accumulators of two runs.
template <typename Op>
struct Fixed {
  template <typename Acc, size_t N>
  [[nodiscard]] HA_INLINE Lanes<Acc, N> Over(const Lanes<Acc, N>& a, const Lanes<Acc, N>& b) const {
    Lanes<Acc, N> out;
    for (size_t i = 0; i < N; ++i) out.lane[i] = Op::Apply(a.lane[i], b.lane[i]);
    return out;
  }
};

/// An operation that is chosen at run time, for types for which a kernel for each operation would
/// not pay for its compile time.
struct AnyOp {
  ReduceOp op = ReduceOp::kSum;

  template <typename Run>
  [[nodiscard]] HA_INLINE Run Over(const Run& a, const Run& b) const {
    switch (op) {
      case ReduceOp::kMin:
        return Fixed<Min>{}.Over(a, b);
      case ReduceOp::kMax:
        return Fixed<Max>{}.Over(a, b);
      case ReduceOp::kProduct:
        return Fixed<Product>{}.Over(a, b);
      default:
        return Fixed<Sum>{}.Over(a, b);
    }
  }
};

/// `Leaf` has: Vector, the Lanes of an operand; At(k), operand k. `Op` is Fixed, or AnyOp.
template <typename Leaf, typename Op>
class RankTree {
 public:
  using Vector = typename Leaf::Vector;

  HA_INLINE RankTree(const Leaf& leaf, const Op& op, uint32_t operands)
      : leaf_(leaf), op_(op), operands_(operands) {}

  /// P operands, or any number if P is 0.
  template <uint32_t P>
  [[nodiscard]] HA_INLINE Vector Fold() const {
    if constexpr (P == 0) return Any();
    if constexpr (P != 0) return Tree<P>(0);
  }

 private:
  static constexpr uint32_t kDigits = 7;
  static_assert(kMostSources < 1U << kDigits);

  /// Any number of operands, one after the other: a binary counter whose digits are the finished
  /// subtrees. Not unrolled, or 60 kernels would take minutes to compile.
  [[nodiscard]] HA_INLINE Vector Any() const {
    Vector digit[kDigits];
    Vector sum{};
    uint32_t done = 0;
    HA_ROLLED
    for (uint32_t k = 0; k < operands_; ++k) {
      sum = leaf_.At(k);
      done = 0;
      HA_ROLLED
      for (; (k >> done & 1) != 0; ++done) sum = Apply(digit[done], sum);
      digit[done] = sum;
    }
    // Folds the subtrees that are left, from the last operands to the first.
    HA_ROLLED
    for (uint32_t d = done + 1; d < kDigits; ++d) {
      if ((operands_ >> d & 1) != 0) sum = Apply(digit[d], sum);
    }
    return sum;
  }

  /// P operands from `first` on.
  template <uint32_t P>
  [[nodiscard]] HA_INLINE Vector Tree(uint32_t first) const {
    if constexpr (P == 1) {
      return leaf_.At(first);
    } else {
      constexpr uint32_t kLeft = P > 4 ? 4 : P > 2 ? 2 : 1;
      const Vector left = Tree<kLeft>(first);
      return Apply(left, Tree<P - kLeft>(first + kLeft));
    }
  }

  [[nodiscard]] HA_INLINE Vector Apply(const Vector& a, const Vector& b) const {
    return op_.Over(a, b);
  }

  const Leaf& leaf_;
  const Op& op_;
  const uint32_t operands_;
};

}  // namespace
}  // namespace horoacc::cuda
