#pragma once
// The machine that persistent kernels run on, as an interface, and how they wait.
//
// `Cta` is the threads of a block: on a GPU (plugin/gpu_cta.cuh), or in a test on the host, where
// one thread plays them one after the other. It has
//
//   Each(body)           every thread calls body(Grid) with its place in the block
//   Sync()               a barrier of the block's threads, for their memory too
//   Any(bool)            the same, and true for all if it was true for one
//   combine_args()       a CombineArgs in memory that the threads share
//   Acquire(cell)        reads a count; what its writer did before is seen after it, by the
//                        whole block behind a barrier, whatever GPU the writer is on
//   Release(cell, n)     writes one; what the block did before the last barrier is seen before it
//   LoadWord, StoreWord  64 bits at once, in no order with anything else, never from a stale cache
//   GoOn(looks)          after a look in vain: false if the call is aborted or past its deadline
//   Report(where)        where a wait was given up; the first one stays
//   channel(), rank(), lane()
#include "execute/cuda/kernels/combine_grid.h"
#include "execute/cuda/persistent/kernel_program.h"

namespace horoacc::cuda {

/// Packs the place at which a wait was given up; 0 means nowhere.
HA_INLINE uint64_t GivenUp(uint32_t rank, uint32_t lane, uint32_t step) {
  return uint64_t{1} << 63 | uint64_t{rank} << 40 | uint64_t{lane & 0xff} << 32 | step;
}
inline uint32_t RankGivenUp(uint64_t report) {
  return static_cast<uint32_t>(report >> 40 & 0xffff);
}
inline uint32_t LaneGivenUp(uint64_t report) { return static_cast<uint32_t>(report >> 32 & 0xff); }
inline uint32_t StepGivenUp(uint64_t report) { return static_cast<uint32_t>(report); }

// The counts of a link, whose messages are numbered from 0 and lie in a ring of `depth` slots. Also
// for the model of the protocol (tests/cpp/model/kernel_model.h).

/// The least count, of posted or taken messages, with message `number` among them.
HA_INLINE uint64_t CountWith(uint64_t number) { return number + 1; }
/// The least count of taken messages at which the slot of message `number` is free.
HA_INLINE uint64_t CountThatFrees(uint64_t number, uint64_t depth) {
  return number < depth ? 0 : CountWith(number - depth);
}
HA_INLINE uint64_t SlotOf(uint64_t number, uint64_t depth) { return number % depth; }

namespace {

/// Waits for a count. False: the call is over. Every acquire empties a GPU's first-level cache, so
/// only the look that ends the wait is one.
template <typename Cta>
HA_INLINE bool Await(Cta& cta, const uint64_t* cell, uint64_t least) {
  HA_ROLLED
  for (uint32_t looks = 0;; ++looks) {
    if (cta.LoadWord(cell) >= least && cta.Acquire(cell) >= least) return true;
    if (!cta.GoOn(looks)) return false;
  }
}

/// Calls `body(i)` for every i below `count`, each in one thread.
template <typename Cta, typename Body>
HA_INLINE void Share(Cta& cta, uint32_t count, const Body& body) {
  cta.Each([&](const Grid& grid) {
    HA_ROLLED
    for (uint32_t i = grid.thread; i < count; i += grid.threads) body(i);
  });
}

HA_INLINE uint64_t* CellAt(char* workspace, uint64_t first, uint64_t number) {
  return reinterpret_cast<uint64_t*>(workspace + first + number * kCellBytes);
}

}  // namespace
}  // namespace horoacc::cuda
