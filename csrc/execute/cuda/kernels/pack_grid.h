#pragma once
// A thread's part of copying many tensors in one launch, with a factor, a change of type and a
// count of NaNs and infinities. Packing and unpacking are the same: a list of tensors, each with
// its source and destination.
#include "execute/cuda/kernels/grid.h"
#include "execute/cuda/kernels/scale_one.h"
#include "execute/cuda/kernels/wide.h"

namespace horoacc::cuda {

/// A block works on one tile at a time, of one tensor. An item's tiles are alike, but for the last.
inline constexpr size_t kTileBytes = size_t{32} << 10;
/// Tiles are multiples of it, so that all are aligned alike.
inline constexpr size_t kTileGrain = 512;

struct PackItem {
  const char* from;
  char* to;
  size_t count;
  uint32_t first_tile;  ///< tiles of the items before
  uint32_t tile;        ///< elements of a tile
};

struct PackArgs {
  const PackItem* items;
  uint32_t item_count;
  uint32_t tiles;
  Factors factors;                ///< only the factor before a sum
  unsigned long long* nonfinite;  ///< counts written NaNs and infinities; may be null
};

namespace {

/// The last item that begins at or before `tile`; every item has a tile.
HA_INLINE uint32_t ItemOf(const PackArgs& args, uint32_t tile) {
  uint32_t low = 0;
  uint32_t high = args.item_count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (args.items[middle].first_tile <= tile ? low : high) = middle;
  }
  return low;
}

/// Elements of From to elements of To, which accumulate in the same type.
template <typename From, typename To>
struct Conversion {
  using In = typename From::Stored;
  using Out = typename To::Stored;
  static_assert(std::is_same_v<typename From::Acc, typename To::Acc>);
  static constexpr size_t kNarrower = sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out);
  static constexpr size_t kLength = kWideBytes / kNarrower;

  /// Adds 1 to `bad` if the result is a NaN or an infinity.
  HA_INLINE static Out Of(In in, const Factors& factors, uint32_t* bad) {
    const Out out = To::Narrow(Prescaled<Number<typename To::Acc>>(factors, From::Widen(in)));
    if constexpr (!kIsInteger<typename To::Acc>) {
      const auto written = To::Widen(out);
      *bad += written - written != 0 ? 1 : 0;
    }
    return out;
  }
};

/// Bytes as they are.
struct Bytes {
  using In = uint8_t;
  using Out = uint8_t;
  static constexpr size_t kLength = kWideBytes;
  HA_INLINE static Out Of(In in, const Factors&, uint32_t*) { return in; }
};

template <typename C>
HA_INLINE void ConvertRun(const Run<typename C::In, C::kLength>& in, char* to,
                          const Factors& factors, uint32_t* bad) {
  if constexpr (std::is_same_v<C, Bytes>) {
    StoreRun(to, in);
  } else {
    Run<typename C::Out, C::kLength> out;
    for (size_t i = 0; i < C::kLength; ++i) {
      out.element[i] = C::Of(in.element[i], factors, bad);
    }
    StoreRun(to, out);
  }
}

/// A block's tile: `count` elements.
template <typename C>
HA_HOST_DEVICE inline void PackTile(const char* from, char* to, size_t count,
                                    const Factors& factors, const Grid& grid, uint32_t* bad) {
  using In = typename C::In;
  using Out = typename C::Out;
  constexpr uint32_t kTurns = 4;
  const size_t head = HeadOf(to, sizeof(Out));
  const bool shifted = Misalignment(from + head * sizeof(In)) != 0;
  const Cut cut = CutElements(head, C::kLength, count, shifted);
  size_t run = grid.thread;
  for (; run + (kTurns - 1) * grid.threads < cut.runs; run += kTurns * grid.threads) {
    Run<In, C::kLength> in[kTurns];
    for (uint32_t t = 0; t < kTurns; ++t) {
      const size_t element = cut.head + (run + t * grid.threads) * C::kLength;
      LoadRun(from + element * sizeof(In), &in[t]);
    }
    for (uint32_t t = 0; t < kTurns; ++t) {
      const size_t element = cut.head + (run + t * grid.threads) * C::kLength;
      ConvertRun<C>(in[t], to + element * sizeof(Out), factors, bad);
    }
  }
  for (; run < cut.runs; run += grid.threads) {
    const size_t element = cut.head + run * C::kLength;
    Run<In, C::kLength> in;
    LoadRun(from + element * sizeof(In), &in);
    ConvertRun<C>(in, to + element * sizeof(Out), factors, bad);
  }
  for (size_t i = grid.thread; i < cut.singles(); i += grid.threads) {
    const size_t element = cut.single(i);
    const In in = LoadElement<In>(from + element * sizeof(In));
    StoreElement<Out>(to + element * sizeof(Out), C::Of(in, factors, bad));
  }
}

/// One thread's part; returns how many NaNs and infinities it wrote.
template <typename C>
HA_HOST_DEVICE inline uint32_t PackOnGrid(const PackArgs& args, const Grid& grid) {
  uint32_t bad = 0;
  for (uint32_t tile = grid.block; tile < args.tiles; tile += grid.blocks) {
    const PackItem& item = args.items[ItemOf(args, tile)];
    const size_t first = size_t{tile - item.first_tile} * item.tile;
    const size_t count = item.count - first < item.tile ? item.count - first : item.tile;
    PackTile<C>(item.from + first * sizeof(typename C::In),
                item.to + first * sizeof(typename C::Out), count, args.factors, grid, &bad);
  }
  return bad;
}

}  // namespace
}  // namespace horoacc::cuda
