#pragma once
// A thread's part of one of Adasum's two rounds: products of pairs of sources, or their sum with a
// factor for each. The bits are the CPU's: the same lanes and chunks, added up in the same order.
#include "execute/cuda/kernels/grid.h"
#include "execute/cuda/kernels/rank_tree.h"
#include "execute/cuda/kernels/wide.h"
#include "execute/kernels/adasum.h"
#include "execute/kernels/adasum_lanes.h"

namespace horoacc::cuda {

/// The arguments of a kernel: see ha_cuda_adasum. The elements are aligned.
struct AdasumArgs {
  const char* source[kMostSources];
  char* destination[kMostSources];
  double factor[kMostSources];
  double* sums;  ///< null: the round with factors
  uint32_t sources;
  uint64_t count;
  uint64_t begun;
  uint64_t first, step;
};

namespace {

template <typename E>
class GridAdasum {
 public:
  using Stored = typename E::Stored;
  static constexpr uint32_t kTurns = 8;  ///< loads of a source under way

  HA_INLINE explicit GridAdasum(const AdasumArgs& args) : args_(args) {}

  HA_HOST_DEVICE void Run(const Grid& grid) const {
    if (args_.sums == nullptr) return Combine(grid);
    const uint64_t lanes = threads();
    HA_ROLLED
    for (uint64_t lane = grid.index(); lane < lanes; lane += grid.size()) Multiply(lane);
  }

  /// That have work at once.
  [[nodiscard]] HA_INLINE uint64_t threads() const {
    if (args_.sums == nullptr) return args_.count;
    const uint64_t chunks = (args_.begun + args_.count + kAdasumChunk - 1) / kAdasumChunk;
    const uint64_t own =
        args_.first < chunks ? (chunks - args_.first + args_.step - 1) / args_.step : 0;
    return own * ProductCount(args_.sources) * kProductLanes;
  }

 private:
  /// One lane of a pair in a chunk. Threads beside each other read beside each other.
  HA_INLINE void Multiply(uint64_t index) const {
    const uint64_t lane = index % kProductLanes;
    const uint64_t pairs = ProductCount(args_.sources);
    const uint64_t place = index / kProductLanes;
    const uint64_t chunk = args_.first + place / pairs * args_.step;
    const auto pair = static_cast<uint32_t>(place % pairs);
    uint32_t right = 0;
    HA_ROLLED
    while ((right + 1) * (right + 2) / 2 <= pair) ++right;
    const char* const a = args_.source[pair - right * (right + 1) / 2];
    const char* const b = args_.source[right];
    const uint64_t begin = chunk == 0 ? 0 : chunk * kAdasumChunk - args_.begun;
    const uint64_t end_of_chunk = (chunk + 1) * kAdasumChunk - args_.begun;
    const uint64_t end = end_of_chunk < args_.count ? end_of_chunk : args_.count;
    double* const sum = args_.sums + place * kPairDoubles + lane;
    const bool goes_on = chunk == 0 && args_.begun > 0;
    double high = goes_on ? sum[0] : 0;
    double low = goes_on ? sum[kProductLanes] : 0;
    HA_ROLLED
    for (uint64_t k = begin + lane; k < end; k += kTurns * kProductLanes) {
      Stored left_of[kTurns]{};
      Stored right_of[kTurns]{};
      HA_UNROLLED
      for (uint32_t t = 0; t < kTurns; ++t) {
        if (k + t * kProductLanes >= end) continue;
        left_of[t] = Load(a, k + t * kProductLanes);
        right_of[t] = Load(b, k + t * kProductLanes);
      }
      HA_UNROLLED
      for (uint32_t t = 0; t < kTurns; ++t) {  // zeros add nothing
        const double x = E::Widen(left_of[t]);
        const double y = E::Widen(right_of[t]);
        AddProduct<kExactProducts<E>>(x, y, &high, &low);
      }
    }
    sum[0] = high;
    sum[kProductLanes] = low;
  }

  HA_INLINE void Combine(const Grid& grid) const {
    const size_t stride = grid.size();
    HA_ROLLED
    for (size_t k = grid.index(); k < args_.count; k += kTurns * stride) {
      double sum[kTurns]{};
      HA_ROLLED
      for (uint32_t s = 0; s < args_.sources; ++s) {
        Stored x[kTurns]{};
        HA_UNROLLED
        for (uint32_t t = 0; t < kTurns; ++t) {
          if (k + t * stride < args_.count) x[t] = Load(args_.source[s], k + t * stride);
        }
        HA_UNROLLED
        for (uint32_t t = 0; t < kTurns; ++t) {
          const double part = args_.factor[s] * static_cast<double>(E::Widen(x[t]));
          sum[t] = s == 0 ? part : sum[t] + part;
        }
      }
      HA_ROLLED
      for (uint32_t d = 0; d < args_.sources; ++d) {
        HA_UNROLLED
        for (uint32_t t = 0; t < kTurns; ++t) {
          if (k + t * stride >= args_.count) continue;
          char* const to = args_.destination[d] + (k + t * stride) * sizeof(Stored);
          InGlobal<Aliased<Stored>>(to)->value = E::Narrow(static_cast<typename E::Acc>(sum[t]));
        }
      }
    }
  }

  HA_INLINE static Stored Load(const char* base, uint64_t index) {
    return InGlobal<Aliased<Stored>>(base + index * sizeof(Stored))->value;
  }

  const AdasumArgs& args_;
};

}  // namespace
}  // namespace horoacc::cuda
