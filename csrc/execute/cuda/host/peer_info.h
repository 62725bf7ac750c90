#pragma once
// Information about the GPUs of a process set's ranks, on the control segment, in zeroed memory. A
// rank writes the fields of a stage before it reaches the stage, and others read them afterwards.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/page.h"
#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/host/window_line.h"
#include "execute/cuda/nccl/nccl_calls.h"

namespace horoacc::cuda {

/// A rank's progress in its set's capability exchange. Each waits for the others before the next.
/// With `auto` the last three come again for the next mode if some rank could not do them.
enum class ExchangeStage : uint32_t {
  kAbsent = 0,
  kIntroduced = 1,  ///< `device`, `traits`, `lanes`, `nccl_version`
  kOffered = 2,     ///< memory that the others may open
  kOpened = 3,      ///< it has opened the others' memory
  kJoined = 4,      ///< it is in NCCL's communicator
};

inline constexpr uint32_t kStagesOfAttempt = 3;
inline constexpr uint32_t kMostAttempts = 4;  ///< as measured, then L, K and S alone

/// That a rank cannot go on with an attempt.
struct GpuTrouble {
  std::atomic<uint32_t> at{0};  ///< the stage at which it found so; 0: it can
  char why[256] = {};
};

/// How far the ranks of one host are, or of all hosts, in an exchange of several hosts. On the wire
/// as it is.
struct HostNews {
  uint32_t stage = 0;       ///< that all of them have reached
  uint32_t trouble_at = 0;  ///< as GpuTrouble::at
  uint32_t lowest = 0;      ///< of these ranks, its number in the process set
  char why[308] = {};
  char nccl_version[16] = {};
  NcclId nccl_id{};
};

/// Written by its rank.
struct alignas(64) GpuPeerInfo {
  std::atomic<uint32_t> stage{0};  ///< of the first attempt, and kStagesOfAttempt for each before
  int32_t device = -1;             ///< its number in that process
  ha_cuda_traits traits{};
  uint64_t lanes = 0;          ///< for its tickets, a bit each: see TicketLanes
  char nccl_version[16] = {};  ///< of the library that it has loaded, if NCCL is wanted
  NcclId nccl_id{};            ///< the leader's, in mode NCCL
  // The rank's fusion buffer; the pointer is for ranks in the same process.
  void* memory = nullptr;
  ha_cuda_handle memory_handle{};
  GpuTrouble trouble[kMostAttempts];
  // The leader's, of an exchange of several hosts: what it knows of all hosts. The reason lies in
  // `hosts_why` once there is a `hosts_trouble_at`, and `nccl_id` is that of all from kOffered on.
  std::atomic<uint32_t> hosts_stage{0};
  std::atomic<uint32_t> hosts_trouble_at{0};
  char hosts_why[sizeof HostNews::why] = {};

  // Windows that the rank's GPU has packed and reduced.
  alignas(64) std::atomic<uint64_t> packed{0};
  std::atomic<uint64_t> reduced{0};
  // On several hosts: windows of whose part a rail has the results, and whose results a rank has.
  std::atomic<uint64_t> stored{0};
  std::atomic<uint64_t> taken{0};
  // Of an Adasum, which also counts in `stored`: where its products lie in the rank's memory.
  std::atomic<uint64_t> sums{0};
  // Renewals of its kernels' memory: no kernel of before uses it; all of it is zeroed.
  std::atomic<uint64_t> drained{0};
  std::atomic<uint64_t> cleared{0};
  // The leader's: the number of the set's last ticket that was called, and how often ranks hold it
  // or one before.
  std::atomic<uint64_t> called{0};
  std::atomic<uint32_t> holders{0};
  std::atomic<uint32_t> closed{0};  ///< it has closed all memory of the others
};

/// Numbers of windows that one rank's stream waits for and another's writes, by slot. If that rank
/// has died, the host of the waiting rank writes them: far ahead, and what a stream that still runs
/// writes later is not less than what is awaited, since one window at a time uses a slot.
struct alignas(64) GpuPeerWords {
  std::atomic<uint32_t> packed[WindowLine::kSlots]{};
  std::atomic<uint32_t> reduced[WindowLine::kSlots]{};
};

/// A set's part of the control segment, for GPUs.
struct GpuGroupSegment {
  GpuPeerInfo* infos = nullptr;  ///< by index of the rank
  GpuPeerWords* words =
      nullptr;  ///< by index of the waiting, then of the writing rank; whole pages
  uint32_t ranks = 0;

  [[nodiscard]] GpuPeerWords& of(uint32_t waits, uint32_t writes) const {
    return words[static_cast<size_t>(waits) * ranks + writes];
  }
  /// Bytes of whole pages.
  [[nodiscard]] size_t word_pages() const {
    return WholePages(sizeof(GpuPeerWords) * ranks * ranks);
  }
};

}  // namespace horoacc::cuda
