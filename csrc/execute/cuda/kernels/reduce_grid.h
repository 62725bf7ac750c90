#pragma once
// A thread's part of the reduction of N sources in one pass. The sums have the bits of the CPU's
// kernels: the balanced tree over rank numbers, in the accumulator's type, rounded once.
#include "execute/cuda/kernels/grid.h"
#include "execute/cuda/kernels/rank_tree.h"
#include "execute/cuda/kernels/scale_one.h"
#include "execute/cuda/kernels/wide.h"

namespace horoacc::cuda {

/// The operands of a reduction. A destination may be a source (in place); nothing else overlaps.
struct Operands {
  const char* source[kMostSources];
  char* destination[kMostSources];
  uint64_t raw;  ///< by source: it still needs the factor before the sum
  uint32_t sources;
  uint32_t destinations;
  bool unfinished;  ///< the destinations get sums without the factor behind
  size_t count;
};

/// The arguments of a kernel.
struct ReduceArgs {
  Operands operands;
  Factors factors;
};

namespace {

/// How a kernel for up to P sources works, or one for any number if P is 0. A thread has 8 loads
/// under way before it uses the first: of P sources' 16 bytes in 8 / P turns; or of 8 sources'
/// words or elements, and then of the next 8. Of complex128 it is half, since its registers are as
/// many as there are.
template <typename Element, uint32_t P>
struct ReduceShape {
  static constexpr uint32_t kGroup = P != 0 ? P : sizeof(Element) < kWideBytes ? 8 : 4;
  static constexpr uint32_t kTurns = P != 0 ? 8 / P : 1;
  static constexpr uint32_t kWords = P != 0 ? 4 : sizeof(Element) < 8 ? 1 : sizeof(Element) / 4;
  static constexpr uint32_t kBytes = kWords * 4;
  static constexpr uint32_t kLength = kBytes / sizeof(Element);
  using Unit = Words<kWords>;
};

/// The element that begins `bit` bits above the lowest of a unit's word `w`.
template <typename T, uint32_t W>
HA_INLINE T ElementIn(const Words<W>& unit, uint32_t w, uint32_t bit) {
  T value;
  if constexpr (kIsComplex<T>) {
    using Part = decltype(value.real);
    value.real = ElementIn<Part>(unit, w, bit);
    value.imaginary = ElementIn<Part>(unit, w + sizeof(Part) / 4, bit);
  } else if constexpr (sizeof(T) == 8) {
    const uint64_t bits = uint64_t{unit.word[w + 1]} << 32 | unit.word[w];
    memcpy(&value, &bits, sizeof value);
  } else {
    const uint32_t bits = unit.word[w] >> bit;
    memcpy(&value, &bits, sizeof value);
  }
  return value;
}

/// Puts an element into a unit that has zeros there.
template <typename T, uint32_t W>
HA_INLINE void PutElement(T value, uint32_t w, uint32_t bit, Words<W>* unit) {
  if constexpr (kIsComplex<T>) {
    PutElement(value.real, w, bit, unit);
    PutElement(value.imaginary, w + sizeof(value.real) / 4, bit, unit);
  } else if constexpr (sizeof(T) == 8) {
    memcpy(&unit->word[w], &value, sizeof value);
  } else {
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    unit->word[w] |= bits << bit;
  }
}

/// One element at any address, part by part.
template <typename T>
HA_INLINE T LoadWhole(const char* at) {
  if constexpr (kIsComplex<T>) {
    using Part = decltype(T::real);
    return {LoadElement<Part>(at), LoadElement<Part>(at + sizeof(Part))};
  } else {
    return LoadElement<T>(at);
  }
}
template <typename T>
HA_INLINE void StoreWhole(char* at, T value) {
  if constexpr (kIsComplex<T>) {
    StoreElement(at, value.real);
    StoreElement(at + sizeof(value.real), value.imaginary);
  } else {
    StoreElement(at, value);
  }
}

/// Calls body(word, bit) for each element of a unit. The elements of a word of small integers have
/// one code, since theirs are most of the kernels.
template <typename E, uint32_t P, typename Body>
HA_INLINE void EachElement(const Body& body) {
  using Shape = ReduceShape<typename E::Stored, P>;
  constexpr uint32_t kSize = sizeof(typename E::Stored);
  HA_UNROLLED
  for (uint32_t w = 0; w < Shape::kWords; w += kSize < 8 ? 1 : kSize / 4) {
    if constexpr (kIsInteger<typename E::Acc>) {
      HA_ROLLED
      for (uint32_t bit = 0; bit < 32; bit += 8 * kSize) body(w, bit);
    } else {
      HA_UNROLLED
      for (uint32_t bit = 0; bit < 32; bit += 8 * kSize) body(w, bit);
    }
  }
}

/// A unit of each of a group of sources.
template <typename E, uint32_t P>
class SourceUnits {
 public:
  using Stored = typename E::Stored;
  using Acc = typename E::Acc;
  using Shape = ReduceShape<Stored, P>;

  /// Puts the loads of `group` sources from `first` on under way; `at` is an offset in bytes. Those
  /// that are not aligned there are loaded from the aligned address before.
  HA_INLINE void Load(const Operands& args, uint32_t first, uint32_t group, size_t at) {
    HA_UNROLLED
    for (uint32_t k = 0; k < Shape::kGroup; ++k) {
      if (k < group) unit_[k] = Aligned(args.source[first + k] + at)[0];
    }
  }

  /// To be called for sources of which some are not aligned: loads what follows of each.
  HA_INLINE void Shift(const Operands& args, uint32_t first, uint32_t group, size_t at) {
    typename Shape::Unit next[Shape::kGroup]{};
    HA_UNROLLED
    for (uint32_t k = 0; k < Shape::kGroup; ++k) {
      if (k < group) next[k] = Aligned(args.source[first + k] + at)[1];
    }
    HA_UNROLLED
    for (uint32_t k = 0; k < Shape::kGroup; ++k) {
      if (k >= group) continue;
      const uint32_t off = Misalignment(args.source[first + k] + at, Shape::kBytes);
      unit_[k] = Shifted(unit_[k], next[k], off);
    }
  }

  /// Of floats, whose products are elements again.
  HA_INLINE void Prescale(const Operands& args, const Factors& factors, uint32_t first) {
    HA_UNROLLED
    for (uint32_t k = 0; k < Shape::kGroup; ++k) {
      if ((args.raw >> (first + k) & 1) == 0) continue;
      typename Shape::Unit scaled{};
      EachElement<E, P>([&](uint32_t w, uint32_t bit) {
        const Acc value = E::Widen(ElementIn<Stored>(unit_[k], w, bit));
        PutElement(E::Narrow(Prescaled<E>(factors, value)), w, bit, &scaled);
      });
      unit_[k] = scaled;
    }
  }

  /// The sum of the elements at a place in the units.
  template <typename Op>
  [[nodiscard]] HA_INLINE Acc Fold(const Operands& args, const Factors& factors, const Op& op,
                                   uint32_t first, uint32_t group, uint32_t w, uint32_t bit) const {
    const auto leaf = [&](uint32_t k) -> Lanes<Acc, 1> {
      Acc value = E::Widen(ElementIn<Stored>(unit_[k], w, bit));
      if constexpr (kIsInteger<Acc> && kHasFactors<E>) {
        if ((args.raw >> (first + k) & 1) != 0) value = Prescaled<E>(factors, value);
      }
      return {{value}};
    };
    return FoldUpTo<Shape::kGroup>(leaf, op, group).lane[0];
  }

 private:
  using Unit = typename Shape::Unit;

  [[nodiscard]] HA_INLINE static const Unit* Aligned(const char* from) {
    return InGlobal<Unit>(from - Misalignment(from, Shape::kBytes));
  }

  Unit unit_[Shape::kGroup]{};
};

/// One thread's part; `Op` is Fixed or AnyOp.
template <typename E, uint32_t P, typename Op>
class GridReduction {
 public:
  using Stored = typename E::Stored;
  using Acc = typename E::Acc;
  using Shape = ReduceShape<Stored, P>;
  using Unit = typename Shape::Unit;

  HA_INLINE GridReduction(const Operands& args, const Factors& factors, const Op& op)
      : args_(args), factors_(factors), op_(op) {}

  HA_HOST_DEVICE void Run(const Grid& grid) const {
    // Runs whose stores are aligned in the first destination.
    const size_t head = HeadOf(args_.destination[0], sizeof(Stored), Shape::kBytes);
    bool shifted = false;
    HA_ROLLED
    for (uint32_t s = 0; s < args_.sources; ++s) {
      const char* const at = args_.source[s] + head * sizeof(Stored);
      shifted = shifted || Misalignment(at, Shape::kBytes) != 0;
    }
    const Cut cut = CutElements(head, Shape::kLength, args_.count, shifted);
    const size_t stride = grid.size();
    HA_ROLLED
    for (size_t run = grid.index(); run < cut.runs; run += Shape::kTurns * stride) {
      const size_t at = (cut.head + run * Shape::kLength) * sizeof(Stored);
      const size_t left = (cut.runs - run + stride - 1) / stride;
      const uint32_t turns = left < Shape::kTurns ? static_cast<uint32_t>(left) : Shape::kTurns;
      Turns(at, stride * Shape::kBytes, turns, shifted);
    }
    HA_ROLLED
    for (size_t i = grid.index(); i < cut.singles(); i += stride) Single(cut.single(i));
  }

 private:
  /// Runs at `at` and `step` bytes further.
  HA_INLINE void Turns(size_t at, size_t step, uint32_t turns, bool shifted) const {
    Unit out[Shape::kTurns]{};
    if constexpr (P == 0) {
      out[0] = Many(at, shifted);
    } else {
      SourceUnits<E, P> units[Shape::kTurns];
      HA_UNROLLED
      for (uint32_t t = 0; t < Shape::kTurns; ++t) {
        units[t].Load(args_, 0, t < turns ? args_.sources : 0, at + t * step);
      }
      HA_ROLLED
      for (uint32_t t = 0; t < Shape::kTurns && shifted; ++t) {
        units[0].Shift(args_, 0, t < turns ? args_.sources : 0, at + t * step);
        Rotate(units);
      }
      HA_UNROLLED
      for (uint32_t t = 0; t < Shape::kTurns; ++t) {
        if constexpr (!kIsInteger<Acc>) {
          if (factors_.prescales) units[t].Prescale(args_, factors_, 0);
        }
        EachElement<E, P>([&](uint32_t w, uint32_t bit) {
          const Acc sum = units[t].Fold(args_, factors_, op_, 0, args_.sources, w, bit);
          PutElement(Finished(sum), w, bit, &out[t]);
        });
      }
    }
    HA_ROLLED
    for (uint32_t d = 0; d < args_.destinations; ++d) {
      Store(args_.destination[d] + at, step, turns, out);
    }
  }

  /// The unit of any number of sources.
  HA_INLINE Unit Many(size_t at, bool shifted) const {
    using Sums = Lanes<Acc, Shape::kLength>;
    RankCounter<Shape::kGroup == 8 ? 3 : 4, Sums, Op> counter(op_);
    HA_ROLLED
    for (uint32_t first = 0; first < args_.sources; first += Shape::kGroup) {
      const uint32_t left = args_.sources - first;
      const uint32_t group = left < Shape::kGroup ? left : Shape::kGroup;
      SourceUnits<E, P> units;
      units.Load(args_, first, group, at);
      if (shifted) units.Shift(args_, first, group, at);
      if constexpr (!kIsInteger<Acc>) {
        if (factors_.prescales) units.Prescale(args_, factors_, first);
      }
      Sums sums;
      HA_UNROLLED
      for (uint32_t i = 0; i < Shape::kLength; ++i) {
        const uint32_t bit = i * 8 * sizeof(Stored);
        sums.lane[i] = units.Fold(args_, factors_, op_, first, group, 0, bit);
      }
      counter.Add(sums);
    }
    const Sums total = counter.Total();
    Unit out{};
    HA_UNROLLED
    for (uint32_t i = 0; i < Shape::kLength; ++i) {
      PutElement(Finished(total.lane[i]), 0, i * 8 * sizeof(Stored), &out);
    }
    return out;
  }

  HA_INLINE void Single(size_t element) const {
    const size_t at = element * sizeof(Stored);
    RankCounter<6, Lanes<Acc, 1>, Op> counter(op_);
    HA_ROLLED
    for (uint32_t k = 0; k < args_.sources; ++k) {
      const Acc value = E::Widen(LoadWhole<Stored>(args_.source[k] + at));
      const bool is_raw = kHasFactors<E> && (args_.raw >> k & 1) != 0;
      counter.Add({{is_raw ? Prescaled<E>(factors_, value) : value}});
    }
    const Stored out = Finished(counter.Total().lane[0]);
    HA_ROLLED
    for (uint32_t d = 0; d < args_.destinations; ++d) {
      StoreWhole(args_.destination[d] + at, out);
    }
  }

  [[nodiscard]] HA_INLINE Stored Finished(Acc sum) const {
    if constexpr (!kHasFactors<E>) {
      return E::Narrow(sum);
    } else if constexpr (kIsInteger<Acc>) {
      return E::Narrow(args_.unfinished ? sum : Postscaled(factors_, sum));
    } else {
      // A product by 1 has the same bits, and no branch.
      const bool scales = factors_.postscales && !args_.unfinished;
      return E::Narrow(Times(sum, scales ? factors_.factor : 1));
    }
  }

  HA_INLINE void Store(char* to, size_t step, uint32_t turns, Unit (&out)[Shape::kTurns]) const {
    if (Misalignment(to, Shape::kBytes) == 0) {
      HA_UNROLLED
      for (uint32_t t = 0; t < Shape::kTurns; ++t) {
        if (t < turns) *InGlobal<Unit>(to + t * step) = out[t];
      }
      return;
    }
    HA_ROLLED
    for (uint32_t t = 0; t < Shape::kTurns; ++t) {
      if (t < turns) StorePieces(to + t * step, out[0]);
      Rotate(out);
    }
  }

  /// For loops whose code works on the first one alone: after all turns each is in its place.
  template <typename T>
  HA_INLINE static void Rotate(T (&turn)[Shape::kTurns]) {
    const T first = turn[0];
    HA_UNROLLED
    for (uint32_t t = 0; t + 1 < Shape::kTurns; ++t) turn[t] = turn[t + 1];
    turn[Shape::kTurns - 1] = first;
  }

  const Operands& args_;
  const Factors& factors_;
  const Op& op_;
};

/// One thread's part of the reduction of up to P sources, or of any number if P is 0.
template <typename E, uint32_t P, typename Op>
HA_HOST_DEVICE inline void ReduceOnGrid(const Operands& args, const Factors& factors, const Op& op,
                                        const Grid& grid) {
  GridReduction<E, P, Op>(args, factors, op).Run(grid);
}

}  // namespace
}  // namespace horoacc::cuda
