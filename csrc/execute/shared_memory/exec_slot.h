#pragma once
// The words through which the ranks of a set run one decision together. They lie in the host's
// control segment; a ring of slots serves the decisions of a set in turn.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace horoacc {

inline constexpr uint32_t kMaxWindowDepth = 8;

/// Claimed by the ranks that run, so that a rank that is not on a core holds up no other.
struct alignas(64) SliceCounter {
  std::atomic<uint64_t> value{0};
};

/// One rank's progress through the windows. Written by that rank only.
struct alignas(64) RankProgress {
  std::atomic<uint64_t> exposed{0};   ///< windows whose input the peers may read
  std::atomic<uint64_t> consumed{0};  ///< windows of which this rank has all it needs
  std::atomic<uint64_t> staging{0};   ///< offset of its window ring in its memory
  // Of a rail of a composed allreduce.
  std::atomic<uint64_t> sums{0};     ///< offset of its sums in its memory
  std::atomic<uint64_t> reduced{0};  ///< up to this position they are those over all hosts
};

/// One slot: fixed part, then a RankProgress for every rank of the set.
struct ExecSlot {
  SliceCounter next_slice;
  SliceCounter slices_done;
  std::atomic<uint32_t> gate{0};              ///< see result_gate.h
  SliceCounter window_done[kMaxWindowDepth];  ///< slices done, counted over all uses of the place

  [[nodiscard]] RankProgress& rank(uint32_t index) {
    return reinterpret_cast<RankProgress*>(this + 1)[index];
  }
  [[nodiscard]] static size_t BytesFor(uint32_t ranks) {
    return sizeof(ExecSlot) + ranks * sizeof(RankProgress);
  }
  /// Only while no rank uses the slot.
  void Reset(uint32_t ranks) {
    new (this) ExecSlot;
    for (uint32_t r = 0; r < ranks; ++r) new (&rank(r)) RankProgress;
  }
};

}  // namespace horoacc
