#pragma once
// A thread's part of the reduction of N sources in one pass. The sums have the bits of the CPU's
// kernels: the balanced tree over rank numbers, in the accumulator's type, rounded once.
#include "execute/cuda/kernels/grid.h"
#include "execute/cuda/kernels/rank_tree.h"
#include "execute/cuda/kernels/scale_one.h"
#include "execute/cuda/kernels/wide.h"

namespace horoacc::cuda {

/// The arguments of a kernel. A destination may be a source (in place); nothing else overlaps.
struct ReduceArgs {
  const void* source[kMostSources];
  void* destination[kMostSources];
  uint32_t sources;
  uint32_t destinations;
  size_t count;
  Factors factors;
};

namespace {

/// An element, or a run of them, of each source.
template <typename E, size_t N>
class SourceLeaf {
 public:
  using Stored = typename E::Stored;
  using Vector = Lanes<typename E::Acc, N>;

  HA_INLINE SourceLeaf(const ReduceArgs& args, size_t element) : args_(args), element_(element) {}

  [[nodiscard]] HA_INLINE Vector At(uint32_t rank) const {
    const char* const at = static_cast<const char*>(args_.source[rank]) + element_ * sizeof(Stored);
    Vector out;
    if constexpr (N == 1) {
      out.lane[0] = Prescaled<E>(args_.factors, E::Widen(LoadElement<Stored>(at)));
    } else {
      Run<Stored, N> run;
      LoadRun(at, &run);
      for (size_t i = 0; i < N; ++i) {
        out.lane[i] = Prescaled<E>(args_.factors, E::Widen(run.element[i]));
      }
    }
    return out;
  }

 private:
  const ReduceArgs& args_;
  const size_t element_;
};

/// P sources, or any number if P is 0.
template <typename E, typename Op, uint32_t P, size_t N>
HA_INLINE Lanes<typename E::Acc, N> Reduced(const ReduceArgs& args, size_t element) {
  const SourceLeaf<E, N> leaf(args, element);
  const Fixed<Op> op{};
  return RankTree<SourceLeaf<E, N>, Fixed<Op>>(leaf, op, args.sources).template Fold<P>();
}

template <typename E, size_t N>
HA_INLINE void Finish(const ReduceArgs& args, size_t element,
                      const Lanes<typename E::Acc, N>& sum) {
  using Stored = typename E::Stored;
  if constexpr (N == 1) {
    const Stored value = E::Narrow(Postscaled(args.factors, sum.lane[0]));
    for (uint32_t d = 0; d < args.destinations; ++d) {
      StoreElement<Stored>(static_cast<char*>(args.destination[d]) + element * sizeof(Stored),
                           value);
    }
  } else {
    Run<Stored, N> run;
    for (size_t i = 0; i < N; ++i) {
      run.element[i] = E::Narrow(Postscaled(args.factors, sum.lane[i]));
    }
    for (uint32_t d = 0; d < args.destinations; ++d) {
      StoreRun(static_cast<char*>(args.destination[d]) + element * sizeof(Stored), run);
    }
  }
}

/// Runs whose stores are aligned in the first destination.
template <typename Stored>
HA_INLINE Cut CutOf(const ReduceArgs& args) {
  constexpr size_t kLength = kWideBytes / sizeof(Stored);
  const size_t head = HeadOf(args.destination[0], sizeof(Stored));
  bool shifted = false;
  for (uint32_t s = 0; s < args.sources; ++s) {
    const char* const at = static_cast<const char*>(args.source[s]) + head * sizeof(Stored);
    shifted = shifted || Misalignment(at) != 0;
  }
  return CutElements(head, kLength, args.count, shifted);
}

/// One thread's part. P of 2, 4 or 8 keeps several loads in flight for each thread; 0 takes any
/// number.
template <typename E, typename Op, uint32_t P>
HA_HOST_DEVICE inline void ReduceOnGrid(const ReduceArgs& args, const Grid& grid) {
  using Stored = typename E::Stored;
  using Acc = typename E::Acc;
  constexpr size_t kLength = kWideBytes / sizeof(Stored);
  constexpr uint32_t kTurns = P == 0 ? 1 : P >= 4 ? 2 : 4;
  const Cut cut = CutOf<Stored>(args);
  const size_t stride = grid.size();
  size_t run = grid.index();
  if constexpr (kTurns > 1) {
    for (; run + (kTurns - 1) * stride < cut.runs; run += kTurns * stride) {
      Lanes<Acc, kLength> sum[kTurns];
      for (uint32_t t = 0; t < kTurns; ++t) {
        sum[t] = Reduced<E, Op, P, kLength>(args, cut.head + (run + t * stride) * kLength);
      }
      for (uint32_t t = 0; t < kTurns; ++t) {
        Finish<E, kLength>(args, cut.head + (run + t * stride) * kLength, sum[t]);
      }
    }
  }
  HA_ROLLED
  for (; run < cut.runs; run += stride) {
    const size_t element = cut.head + run * kLength;
    Finish<E, kLength>(args, element, Reduced<E, Op, P, kLength>(args, element));
  }
  HA_ROLLED
  for (size_t i = grid.index(); i < cut.singles(); i += stride) {
    const size_t element = cut.single(i);
    Finish<E, 1>(args, element, Reduced<E, Op, P, 1>(args, element));
  }
}

}  // namespace
}  // namespace horoacc::cuda
