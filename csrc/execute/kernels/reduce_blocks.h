#pragma once
// Any number of sources, block by block through the L1 cache. Included only by reduce_<isa>.cc.
#include "execute/kernels/reduce_scale.h"
#include "execute/kernels/reduce_tree.h"

namespace horoacc {
namespace {

inline constexpr size_t kBlockBytes = 2048;

// The loops are not inlined, so that operations and types that need the same one share it.

/// op over P sources, element by element, into accumulators.
template <typename E, typename Op, size_t P>
[[gnu::noinline]] void Fold(const void* const* sources, size_t count, typename E::Acc* out) {
  TreeToBlock<Op, P, typename E::Acc> tree{{}, out};
  for (size_t p = 0; p < P; ++p) tree.source[p] = sources[p];
  ForEach<E>(count, tree);
}

template <typename E>
[[gnu::noinline]] void Narrow(const typename E::Acc* block, size_t count, void* out) {
  ForEach<E>(count, NarrowBlock<typename E::Acc>{block, out});
}

// The schoolbook product of complex numbers, without the recovery of infinities that C has. In two
// functions, because GCC 12 fuses the products and the sums of one loop into vfmaddsub even with
// -ffp-contract=off, which rounds differently.
template <typename T>
[[gnu::noinline]] void MultiplyParts(const void* left, const void* right, size_t count, T* straight,
                                     T* crossed) {
  for (size_t i = 0; i < count; ++i) {
    const auto a = LoadRaw<Complex<T>>(left, i * sizeof(Complex<T>));
    const auto b = LoadRaw<Complex<T>>(right, i * sizeof(Complex<T>));
    straight[2 * i] = a.real * b.real;
    crossed[2 * i] = a.imaginary * b.imaginary;
    straight[2 * i + 1] = a.real * b.imaginary;
    crossed[2 * i + 1] = a.imaginary * b.real;
  }
}

template <typename T>
[[gnu::noinline]] void AddParts(const T* straight, const T* crossed, size_t count,
                                Complex<T>* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = {straight[2 * i] - crossed[2 * i], straight[2 * i + 1] + crossed[2 * i + 1]};
  }
}

template <typename T>
void FoldComplexProduct(const void* const* sources, size_t count, Complex<T>* out) {
  alignas(64) T straight[kBlockBytes / sizeof(T)];
  alignas(64) T crossed[kBlockBytes / sizeof(T)];
  MultiplyParts(sources[0], sources[1], count, straight, crossed);
  AddParts(straight, crossed, count, out);
}

/// The loops that a reduction is put together from.
template <typename E>
struct Folds {
  using Fold = void (*)(const void* const* sources, size_t count, typename E::Acc* out);
  Fold blocks;           ///< two blocks of accumulators, or two sources that are such already
  Fold four = nullptr;   ///< four sources, where it is worth a loop of its own
  Fold eight = nullptr;  ///< eight sources, likewise
};

template <typename E, typename Op>
constexpr Folds<E> FoldsOf() {
  using Acc = typename E::Acc;
  if constexpr (kIsComplex<Acc>) {
    return {FoldComplexProduct<decltype(Acc::real)>};
  } else if constexpr (std::is_same_v<Op, Sum> && (Pack<E>::kLanes > 1)) {
    return {Fold<Number<Acc>, Op, 2>, Fold<E, Op, 4>, Fold<E, Op, 8>};
  } else {
    return {Fold<Number<Acc>, Op, 2>};
  }
}

/// Reduces a job in blocks whose accumulators stay in the L1 cache: the partial results of the
/// tree, the scale and the copies to the destinations never reach memory.
template <typename E>
class BlockReduction {
 public:
  BlockReduction(const KernelJob& job, const Folds<E>& folds) : job_(job), folds_(folds) {}

  void Run() {
    for (offset_ = 0; offset_ < job_.count; offset_ += kBlock) {
      length_ = job_.count - offset_ < kBlock ? job_.count - offset_ : kBlock;
      alignas(64) Acc block[kBlock];
      Reduce(0, job_.source_count, block);
      Finish(block);
    }
  }

 private:
  using Acc = typename E::Acc;
  using Stored = typename E::Stored;
  static constexpr size_t kBlock = kBlockBytes / sizeof(Acc);
  static constexpr bool kPlain = std::is_same_v<E, Number<Acc>>;
  // Plain integers have no scale; jobs that have one use ScaledInteger.
  static constexpr bool kScales = !kPlain || !kIsInteger<Acc>;
  // A product with the factor before the sum is an element again.
  static constexpr bool kRounds = !kPlain && !kIsInteger<Acc>;

  /// One frame of the recursion keeps one block, and it is log2(ranks) frames deep.
  void Reduce(size_t first, size_t ranks, Acc* out) const {
    if (ranks == 1) return Leaf(first, out);
    if (!job_.prescales) {
      if (kPlain && ranks == 2) return FoldSources<2>(folds_.blocks, first, out);
      if (folds_.four && ranks == 4) return FoldSources<4>(folds_.four, first, out);
      if (folds_.eight && ranks == 8) return FoldSources<8>(folds_.eight, first, out);
    }
    alignas(64) Acc right[kBlock];
    const size_t left = SplitOf(ranks);
    Reduce(first, left, out);
    Reduce(first + left, ranks - left, right);
    const void* halves[] = {out, right};
    folds_.blocks(halves, length_, out);
  }

  void Leaf(size_t rank, Acc* out) const {
    FoldSources<1>(Fold<E, Sum, 1>, rank, out);
    if constexpr (kScales) {
      if (!job_.prescales) return;
      Prescale(job_, length_, out);
      if constexpr (kRounds) {
        alignas(64) Stored rounded[kBlock];
        Narrow<E>(out, length_, rounded);
        const void* sources[] = {rounded};
        Fold<E, Sum, 1>(sources, length_, out);
      }
    }
  }

  template <size_t P>
  void FoldSources(typename Folds<E>::Fold fold, size_t first, Acc* out) const {
    const void* sources[P];
    for (size_t p = 0; p < P; ++p) {
      sources[p] = static_cast<const char*>(job_.sources[first + p]) + offset_ * sizeof(Stored);
    }
    fold(sources, length_, out);
  }

  void Finish(Acc* block) const {
    if constexpr (kScales) {
      if (job_.postscales) Postscale(job_, length_, block);
    }
    if constexpr (kPlain) {
      Copy(block);
    } else {
      alignas(64) Stored narrow[kBlock];
      Narrow<E>(block, length_, narrow);
      Copy(narrow);
    }
  }

  void Copy(const Stored* block) const {
    for (size_t d = 0; d < job_.destination_count; ++d) {
      char* to = static_cast<char*>(job_.destinations[d]) + offset_ * sizeof(Stored);
      __builtin_memcpy(to, block, length_ * sizeof(Stored));
    }
  }

  const KernelJob& job_;
  const Folds<E>& folds_;
  size_t offset_ = 0;
  size_t length_ = 0;
};

template <typename E, typename Op>
void ReduceBlocks(const KernelJob& job) {
  constexpr Folds<E> kFolds = FoldsOf<E, Op>();
  BlockReduction<E>(job, kFolds).Run();
}

}  // namespace
}  // namespace horoacc
