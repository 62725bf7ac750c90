#pragma once
// A thread's part of the reduction of one step: operands are inputs or unfinished sums, results are
// elements or unfinished sums, all in one pass.
#include "execute/cuda/kernels/reduce_grid.h"

namespace horoacc::cuda {

/// Operands are combined in the order given.
struct CombineArgs {
  Operands operands;
  uint64_t partial;  ///< by source: it lies in the accumulator's type
};

namespace {

/// Operands of which some lie in the accumulator's type, which is not that of elements. A thread
/// takes 16 bytes of accumulators of each at a time, and has 8 loads under way.
template <typename E, typename Op>
class MixedReduction {
 public:
  using Stored = typename E::Stored;
  using Acc = typename E::Acc;

  HA_INLINE MixedReduction(const CombineArgs& args, const Factors& factors, const Op& op)
      : args_(args.operands), partial_(args.partial), factors_(factors), op_(op) {}

  HA_HOST_DEVICE void Run(const Grid& grid) const {
    const size_t runs = IsAligned() ? args_.count / kLength : 0;
    HA_ROLLED
    for (size_t run = grid.index(); run < runs; run += grid.size()) Quad(run * kLength);
    HA_ROLLED
    for (size_t i = runs * kLength + grid.index(); i < args_.count; i += grid.size()) Single(i);
  }

 private:
  static constexpr uint32_t kLength = kWideBytes / sizeof(Acc);
  static constexpr uint32_t kGroup = 8;
  using Sums = Lanes<Acc, kLength>;
  /// As many elements as there are accumulators in 16 bytes.
  using Elements =
      std::conditional_t<kLength * sizeof(Stored) == 8, uint64_t,
                         std::conditional_t<kLength * sizeof(Stored) == 4, uint32_t, uint16_t>>;

  [[nodiscard]] HA_INLINE bool IsPartial(uint32_t k) const { return (partial_ >> k & 1) != 0; }
  [[nodiscard]] HA_INLINE Acc Scaled(uint32_t k, Acc value) const {
    return (args_.raw >> k & 1) != 0 ? Prescaled<E>(factors_, value) : value;
  }
  [[nodiscard]] HA_INLINE Stored Finished(Acc sum) const {
    return E::Narrow(Postscaled(factors_, sum));
  }

  [[nodiscard]] HA_INLINE bool IsAligned() const {
    const uint32_t result = args_.unfinished ? kWideBytes : sizeof(Elements);
    uint32_t off = 0;
    HA_ROLLED
    for (uint32_t k = 0; k < args_.sources; ++k) {
      off |= Misalignment(args_.source[k], IsPartial(k) ? kWideBytes : sizeof(Elements));
    }
    HA_ROLLED
    for (uint32_t d = 0; d < args_.destinations; ++d) {
      off |= Misalignment(args_.destination[d], result);
    }
    return off == 0;
  }

  HA_INLINE void Quad(size_t element) const {
    RankCounter<3, Sums, Op> counter(op_);
    HA_ROLLED
    for (uint32_t first = 0; first < args_.sources; first += kGroup) {
      Wide unit[kGroup]{};
      HA_UNROLLED
      for (uint32_t k = 0; k < kGroup; ++k) {
        if (first + k >= args_.sources) continue;
        const char* const base = args_.source[first + k];
        if (IsPartial(first + k)) {
          unit[k] = *InGlobal<Wide>(base + element * sizeof(Acc));
        } else {
          const auto* const at = InGlobal<Aliased<Elements>>(base + element * sizeof(Stored));
          memcpy(unit[k].word, &at->value, sizeof(Elements));
        }
      }
      const auto leaf = [&](uint32_t k) -> Sums {
        Sums out;
        HA_UNROLLED
        for (uint32_t i = 0; i < kLength; ++i) {
          const uint32_t bit = i * 8 * sizeof(Stored);
          const Acc whole = ElementIn<Acc>(unit[k], i * sizeof(Acc) / 4, 0);
          const Acc widened = E::Widen(ElementIn<Stored>(unit[k], bit / 32, bit % 32));
          out.lane[i] = Scaled(first + k, IsPartial(first + k) ? whole : widened);
        }
        return out;
      };
      counter.Add(FoldUpTo<kGroup>(leaf, op_, args_.sources - first));
    }
    StoreQuad(element, counter.Total());
  }

  HA_INLINE void StoreQuad(size_t element, const Sums& sums) const {
    Wide unit{};
    HA_UNROLLED
    for (uint32_t i = 0; i < kLength; ++i) {
      const uint32_t bit = i * 8 * sizeof(Stored);
      if (args_.unfinished) {
        PutElement(sums.lane[i], i * sizeof(Acc) / 4, 0, &unit);
      } else {
        PutElement(Finished(sums.lane[i]), bit / 32, bit % 32, &unit);
      }
    }
    HA_ROLLED
    for (uint32_t d = 0; d < args_.destinations; ++d) {
      char* const to = args_.destination[d];
      if (args_.unfinished) {
        *InGlobal<Wide>(to + element * sizeof(Acc)) = unit;
      } else {
        Elements elements;
        memcpy(&elements, unit.word, sizeof elements);
        InGlobal<Aliased<Elements>>(to + element * sizeof(Stored))->value = elements;
      }
    }
  }

  HA_INLINE void Single(size_t element) const {
    RankCounter<6, Lanes<Acc, 1>, Op> counter(op_);
    HA_ROLLED
    for (uint32_t k = 0; k < args_.sources; ++k) {
      const char* const base = args_.source[k];
      const Acc value = IsPartial(k)
                            ? LoadElement<Acc>(base + element * sizeof(Acc))
                            : E::Widen(LoadElement<Stored>(base + element * sizeof(Stored)));
      counter.Add({{Scaled(k, value)}});
    }
    const Acc sum = counter.Total().lane[0];
    HA_ROLLED
    for (uint32_t d = 0; d < args_.destinations; ++d) {
      char* const to = args_.destination[d];
      if (args_.unfinished) {
        StoreElement<Acc>(to + element * sizeof(Acc), sum);
      } else {
        StoreElement<Stored>(to + element * sizeof(Stored), Finished(sum));
      }
    }
  }

  const Operands& args_;
  const uint64_t partial_;
  const Factors& factors_;
  const Op& op_;
};

/// By as many sources as there are.
template <typename E, typename Op>
HA_INLINE void ReduceAny(const Operands& args, const Factors& factors, const Op& op,
                         const Grid& grid) {
  if constexpr (std::is_same_v<Op, Fixed<Sum>>) {
    if (args.sources <= 2) return ReduceOnGrid<E, 2>(args, factors, op, grid);
    if (args.sources <= 4) return ReduceOnGrid<E, 4>(args, factors, op, grid);
  }
  if (args.sources <= 8) return ReduceOnGrid<E, 8>(args, factors, op, grid);
  ReduceOnGrid<E, 0>(args, factors, op, grid);
}

/// One thread's part. Not inlined, so that a kernel has the code once: otherwise it took minutes to
/// compile. What comes by value is in registers.
template <typename E, typename Op>
[[gnu::noinline]] HA_HOST_DEVICE void CombineAny(const CombineArgs& args, const Factors& factors,
                                                 Op op, Grid grid) {
  constexpr bool kMixes = !std::is_same_v<typename E::Acc, typename E::Stored>;
  // Integers with factors are rare: they do without faster code.
  constexpr bool kMixesOnly = kMixes && kIsInteger<typename E::Acc>;
  if constexpr (kMixes) {
    if (kMixesOnly || args.partial != 0 || args.operands.unfinished)
      return MixedReduction<E, Op>(args, factors, op).Run(grid);
  }
  if constexpr (!kMixesOnly) ReduceAny<E>(args.operands, factors, op, grid);
}

}  // namespace
}  // namespace horoacc::cuda
