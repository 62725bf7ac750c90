#pragma once
// A thread's part of the reduction of one step: operands are inputs or unfinished sums, results are
// elements or unfinished sums, all in one pass.
#include "execute/cuda/kernels/grid.h"
#include "execute/cuda/kernels/rank_tree.h"
#include "execute/cuda/kernels/scale_one.h"
#include "execute/cuda/kernels/wide.h"

namespace horoacc::cuda {

/// Operands are combined in the order given. A destination may be a source; nothing else overlaps.
struct CombineArgs {
  const char* source[kMostSources];
  char* destination[kMostSources];
  uint64_t raw;      ///< by source: it still needs the factor before the sum
  uint64_t partial;  ///< by source: it lies in the accumulator's type
  uint32_t sources;
  uint32_t destinations;
  bool result_partial;  ///< the destinations get unfinished sums
  size_t count;
};

namespace {

/// A run of each operand, widened, and scaled if it is raw.
template <typename E, size_t N>
class OperandLeaf {
 public:
  using Acc = typename E::Acc;
  using Stored = typename E::Stored;
  using Vector = Lanes<Acc, N>;

  HA_INLINE OperandLeaf(const CombineArgs& args, const Factors& factors, size_t element)
      : args_(args), factors_(factors), element_(element) {}

  [[nodiscard]] HA_INLINE Vector At(uint32_t k) const {
    const char* const base = args_.source[k];
    Vector out = (args_.partial >> k & 1) != 0 ? Partials(base) : Elements(base);
    if ((args_.raw >> k & 1) != 0) {
      for (size_t i = 0; i < N; ++i) out.lane[i] = Prescaled<E>(factors_, out.lane[i]);
    }
    return out;
  }

 private:
  [[nodiscard]] HA_INLINE Vector Elements(const char* base) const {
    Vector out;
    if constexpr (N == 1) {
      out.lane[0] = E::Widen(LoadElement<Stored>(base + element_ * sizeof(Stored)));
    } else {
      Run<Stored, N> run;
      LoadRun(base + element_ * sizeof(Stored), &run);
      for (size_t i = 0; i < N; ++i) out.lane[i] = E::Widen(run.element[i]);
    }
    return out;
  }

  [[nodiscard]] HA_INLINE Vector Partials(const char* base) const {
    Vector out;
    if constexpr (N == 1) {
      out.lane[0] = LoadElement<Acc>(base + element_ * sizeof(Acc));
    } else {
      Run<Acc, N> run;
      LoadRun(base + element_ * sizeof(Acc), &run);
      for (size_t i = 0; i < N; ++i) out.lane[i] = run.element[i];
    }
    return out;
  }

  const CombineArgs& args_;
  const Factors& factors_;
  const size_t element_;
};

template <typename T, size_t N>
HA_INLINE void StoreToAll(const CombineArgs& args, size_t element, const Run<T, N>& run) {
  for (uint32_t d = 0; d < args.destinations; ++d) {
    StoreRun(args.destination[d] + element * sizeof(T), run);
  }
}

template <typename E, size_t N>
HA_INLINE void StoreSums(const CombineArgs& args, const Factors& factors, size_t element,
                         const Lanes<typename E::Acc, N>& sum) {
  using Acc = typename E::Acc;
  using Stored = typename E::Stored;
  if constexpr (N == 1) {
    for (uint32_t d = 0; d < args.destinations; ++d) {
      char* const to = args.destination[d];
      if (args.result_partial) {
        StoreElement<Acc>(to + element * sizeof(Acc), sum.lane[0]);
      } else {
        StoreElement<Stored>(to + element * sizeof(Stored),
                             E::Narrow(Postscaled(factors, sum.lane[0])));
      }
    }
  } else if (args.result_partial) {
    Run<Acc, N> run;
    for (size_t i = 0; i < N; ++i) run.element[i] = sum.lane[i];
    StoreToAll(args, element, run);
  } else {
    Run<Stored, N> run;
    for (size_t i = 0; i < N; ++i) run.element[i] = E::Narrow(Postscaled(factors, sum.lane[i]));
    StoreToAll(args, element, run);
  }
}

/// Runs whose stores are aligned in the first destination.
template <typename E>
HA_INLINE Cut CutOf(const CombineArgs& args) {
  using Acc = typename E::Acc;
  using Stored = typename E::Stored;
  const size_t head =
      HeadOf(args.destination[0], args.result_partial ? sizeof(Acc) : sizeof(Stored));
  bool shifted = false;
  for (uint32_t s = 0; s < args.sources; ++s) {
    const size_t unit = (args.partial >> s & 1) != 0 ? sizeof(Acc) : sizeof(Stored);
    shifted = shifted || Misalignment(args.source[s] + head * unit) != 0;
  }
  return CutElements(head, kWideBytes / sizeof(Stored), args.count, shifted);
}

/// One thread's part. P of 2, 4 or 8 keeps several loads in flight for each thread; 0 takes any
/// number of operands.
template <typename E, uint32_t P, typename Op>
HA_HOST_DEVICE inline void CombineOnGrid(const CombineArgs& args, const Factors& factors,
                                         const Op& op, const Grid& grid) {
  constexpr size_t kLength = kWideBytes / sizeof(typename E::Stored);
  constexpr uint32_t kTurns = P == 0 ? 1 : P >= 4 ? 2 : 4;
  const Cut cut = CutOf<E>(args);
  const size_t stride = grid.size();
  size_t run = grid.index();
  if constexpr (kTurns > 1) {
    for (; run + (kTurns - 1) * stride < cut.runs; run += kTurns * stride) {
      Lanes<typename E::Acc, kLength> sum[kTurns];
      for (uint32_t t = 0; t < kTurns; ++t) {
        const OperandLeaf<E, kLength> leaf(args, factors, cut.head + (run + t * stride) * kLength);
        sum[t] = RankTree<OperandLeaf<E, kLength>, Op>(leaf, op, P).template Fold<P>();
      }
      for (uint32_t t = 0; t < kTurns; ++t) {
        StoreSums<E, kLength>(args, factors, cut.head + (run + t * stride) * kLength, sum[t]);
      }
    }
  }
  HA_ROLLED
  for (; run < cut.runs; run += stride) {
    const size_t element = cut.head + run * kLength;
    const OperandLeaf<E, kLength> leaf(args, factors, element);
    const RankTree<OperandLeaf<E, kLength>, Op> tree(leaf, op, args.sources);
    StoreSums<E, kLength>(args, factors, element, tree.template Fold<P>());
  }
  HA_ROLLED
  for (size_t i = grid.index(); i < cut.singles(); i += stride) {
    const size_t element = cut.single(i);
    const OperandLeaf<E, 1> leaf(args, factors, element);
    const RankTree<OperandLeaf<E, 1>, Op> tree(leaf, op, args.sources);
    StoreSums<E, 1>(args, factors, element, tree.template Fold<0>());
  }
}

/// Only sums of floats over the usual numbers of ranks are unrolled. Not inlined, so that a kernel
/// has the code once: otherwise it took minutes to compile.
template <typename E, typename Op>
[[gnu::noinline]] HA_HOST_DEVICE void CombineAny(const CombineArgs& args, const Factors& factors,
                                                 const Op& op, const Grid& grid) {
  if constexpr (std::is_same_v<Op, Fixed<Sum>>) {
    if (args.sources == 2) return CombineOnGrid<E, 2>(args, factors, op, grid);
    if (args.sources == 4) return CombineOnGrid<E, 4>(args, factors, op, grid);
    if (args.sources == 8) return CombineOnGrid<E, 8>(args, factors, op, grid);
  }
  CombineOnGrid<E, 0>(args, factors, op, grid);
}

}  // namespace
}  // namespace horoacc::cuda
