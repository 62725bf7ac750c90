#pragma once
// The canonical tree over up to eight sources, in registers. Included only by reduce_<isa>.cc.
#include "execute/kernels/reduce_kernels.h"
#include "execute/kernels/reduce_packs.h"

namespace horoacc {
namespace {

/// Where n sources split: the largest power of two below n.
HA_INLINE constexpr size_t SplitOf(size_t n) {
  size_t left = 1;
  while (left * 2 < n) left *= 2;
  return left;
}

/// Accumulators i, i + 1, ... (as many as L has lanes) of op over P sources.
template <typename L, typename Op, size_t P>
HA_INLINE typename L::Vector Tree(const void* const* sources, size_t i) {
  if constexpr (P == 1) {
    return Load<L>(sources[0], i);
  } else {
    constexpr size_t kLeft = SplitOf(P);
    return Op::Apply(Tree<L, Op, kLeft>(sources, i), Tree<L, Op, P - kLeft>(sources + kLeft, i));
  }
}

/// Calls step(L, i) for all of [0, count), with full registers first. Four registers a turn keep
/// enough loads in flight; a plain loop is what the compiler vectorises best.
template <typename E, typename Step>
HA_INLINE void ForEach(size_t count, Step step) {
  using L = Pack<E>;
  size_t i = 0;
  if constexpr (L::kLanes > 1) {
    for (; i + 4 * L::kLanes <= count; i += 4 * L::kLanes) step.template Run<L, 4>(i);
    for (; i + L::kLanes <= count; i += L::kLanes) step.template Run<L, 1>(i);
  }
#pragma GCC ivdep
  for (; i < count; ++i) step.template Run<Single<E>, 1>(i);
}

/// Reduces P sources to accumulators in `out`.
template <typename Op, size_t P, typename Acc>
struct TreeToBlock {
  const void* source[P];
  Acc* out;
  template <typename L, size_t U>
  HA_INLINE void Run(size_t i) const {
    for (size_t u = 0; u < U; ++u, i += L::kLanes) {
      StoreRaw(out, i * sizeof(Acc), Tree<L, Op, P>(source, i));
    }
  }
};

/// Rounds accumulators to elements.
template <typename Acc>
struct NarrowBlock {
  const Acc* block;
  void* out;
  template <typename L, size_t U>
  HA_INLINE void Run(size_t i) const {
    for (size_t u = 0; u < U; ++u, i += L::kLanes) {
      Store<L>(out, i, L::Narrow(LoadRaw<typename L::Vector>(block, i * sizeof(Acc))));
    }
  }
};

/// Reduces P sources of floats to all destinations, with a factor after the sum, which may be 1.
template <typename Op, size_t P>
struct TreeToDestinations {
  const void* source[P];
  void* const* destinations;
  size_t destination_count;
  double factor;
  bool streams;
  template <typename L, size_t U>
  HA_INLINE void Run(size_t i) const {
    typename L::Stored v[U];
    for (size_t u = 0; u < U; ++u) {
      v[u] = L::Narrow(Scaled(Tree<L, Op, P>(source, i + u * L::kLanes)));
    }
    for (size_t d = 0; d < destination_count; ++d) {
      if (U > 1 && streams) {
        for (size_t u = 0; u < U; ++u) Stream<L>(destinations[d], i + u * L::kLanes, v[u]);
      } else {
        for (size_t u = 0; u < U; ++u) Store<L>(destinations[d], i + u * L::kLanes, v[u]);
      }
    }
  }
  template <typename V>
  HA_INLINE V Scaled(V v) const {
    using T = std::conditional_t<kIsDouble<V>, double, float>;
    return v * static_cast<T>(factor);
  }
  template <typename V>
  static constexpr bool kIsDouble = std::is_same_v<V, double> || std::is_same_v<V, DoubleVector>;
};

}  // namespace
}  // namespace horoacc
