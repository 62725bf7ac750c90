#pragma once
// Folds operands along the balanced binary tree over their numbers: n of them split at the largest
// power of two below n. No index of an array is computed, so that all of it stays in registers.
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
    HA_UNROLLED
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

/// Operands `kFirst` to `kFirst + P - 1` of `operands`, of which the first exists: leaf(k) is
/// operand k. The tree over P has the right branches for fewer, too, if those without an operand
/// are left out.
template <uint32_t P, uint32_t kFirst = 0, typename Leaf, typename Op>
[[nodiscard]] HA_INLINE auto FoldUpTo(const Leaf& leaf, const Op& op, uint32_t operands) {
  if constexpr (P == 1) {
    return leaf(kFirst);
  } else {
    auto sum = FoldUpTo<P / 2, kFirst>(leaf, op, operands);
    if (kFirst + P / 2 < operands)
      sum = op.Over(sum, FoldUpTo<P / 2, kFirst + P / 2>(leaf, op, operands));
    return sum;
  }
}

/// Fewer than 2^(kLevels + 1) operands one after the other: a binary counter whose digits are the
/// finished subtrees. An operand may itself be a subtree over as many as every other; the last may
/// be over fewer.
template <uint32_t kLevels, typename Vector, typename Op>
class RankCounter {
 public:
  HA_INLINE explicit RankCounter(const Op& op) : op_(op) {}

  HA_INLINE void Add(const Vector& operand) {
    sum_ = operand;
    Carry<0>();
    ++operands_;
  }

  /// Folds the subtrees that are left, from the last operands to the first.
  [[nodiscard]] HA_INLINE Vector Total() const {
    Vector total = sum_;
    HA_UNROLLED
    for (uint32_t d = 1; d < kLevels; ++d) {
      const bool is_last = (operands_ & ((1U << d) - 1)) == 0;
      if ((operands_ >> d & 1) != 0 && !is_last) total = op_.Over(digit_[d], total);
    }
    return total;
  }

 private:
  template <uint32_t D>
  HA_INLINE void Carry() {
    if constexpr (D < kLevels) {
      if ((operands_ >> D & 1) != 0) {
        sum_ = op_.Over(digit_[D], sum_);
        Carry<D + 1>();
      } else {
        digit_[D] = sum_;
      }
    }
  }

  const Op& op_;
  uint32_t operands_ = 0;
  Vector sum_{};
  Vector digit_[kLevels]{};
};

}  // namespace
}  // namespace horoacc::cuda
