#pragma once
// What the ranks of a process set tell each other of their GPUs, on the control segment. Zeroed
// shared memory; whatever is read of a peer info was written before its stage was reached.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/nccl/nccl_calls.h"

namespace horoacc::cuda {

/// How far a rank has come in its set's meeting. Each waits for the others before the next.
enum class ExchangeStage : uint32_t {
  kAbsent = 0,
  kIntroduced = 1,  ///< `device`, `traits`, `lanes`, `nccl_version`
  kOffered = 2,     ///< memory and events that the others may open
  kOpened = 3,      ///< it has opened what it needs
  kJoined = 4,      ///< it is in NCCL's communicator
};

/// Written by its rank.
struct alignas(64) GpuPeerInfo {
  std::atomic<uint32_t> stage{0};
  int32_t device = -1;  ///< its number in that process
  ha_cuda_traits traits{};
  uint64_t lanes = 0;          ///< in which it takes its turns, a bit each: see TicketLanes
  char nccl_version[16] = {};  ///< of the library that it has loaded, if NCCL is wanted
  NcclId nccl_id{};            ///< the leader's, in mode NCCL
  // Of the rank's fusion buffer and events; the pointers are for ranks in the same process.
  void* memory = nullptr;
  void* packed_event = nullptr;
  void* reduced_event = nullptr;
  ha_cuda_handle memory_handle{};
  ha_cuda_handle packed_handle{};
  ha_cuda_handle reduced_handle{};
  /// The stage at which the rank found that it cannot go on; 0: it can. And why.
  std::atomic<uint32_t> trouble_at{0};
  char trouble[256] = {};

  // How many windows: their events have been recorded; in an exchange, they are done.
  alignas(64) std::atomic<uint64_t> packed{0};
  std::atomic<uint64_t> reduced{0};
  // How often it has renewed the memory of its kernels: nothing uses what was there before; all of
  // it is zeroed.
  std::atomic<uint64_t> drained{0};
  std::atomic<uint64_t> cleared{0};
  // The leader's: how many turns the set has had, with this one, and how many ranks are in it.
  std::atomic<uint64_t> turns{0};
  std::atomic<uint32_t> in_turn{0};
  std::atomic<uint32_t> closed{0};  ///< it has nothing of the others' open any more
};

/// What one rank's stream waits for of another's: how many windows. Streams write it, and the host
/// of the rank that waits, if the other never will.
struct alignas(64) GpuPeerWords {
  std::atomic<uint32_t> packed{0};
  std::atomic<uint32_t> reduced{0};
};

/// A set's part of the control segment.
struct GpuGroupSegment {
  GpuPeerInfo* infos = nullptr;   ///< by index of the rank
  GpuPeerWords* words = nullptr;  ///< by index of who waits, then of who is waited for; whole pages
  uint32_t ranks = 0;

  [[nodiscard]] GpuPeerWords& of(uint32_t waits, uint32_t writes) const {
    return words[static_cast<size_t>(waits) * ranks + writes];
  }
  /// Bytes of whole pages.
  [[nodiscard]] size_t word_pages() const {
    return (sizeof(GpuPeerWords) * ranks * ranks + 4095) / 4096 * 4096;
  }
};

}  // namespace horoacc::cuda
