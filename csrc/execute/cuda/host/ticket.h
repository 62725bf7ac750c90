#pragma once
// Turns of process sets whose GPUs wait for each other: a rank is in one of them at a time.
#include <array>
#include <atomic>
#include <cstdint>

#include "base/result.h"

namespace horoacc::cuda {

class GpuGroup;

/// On the control segment; zeroed memory. Every rank of the host has a lane (far ones share one),
/// and each lane serves its tickets in order. A rank that shares a process with others, or by MPS
/// its GPU's queues, takes its turns in all lanes.
struct TicketLanes {
  static constexpr uint32_t kLanes = 64;
  static constexpr uint64_t kAllLanes = ~uint64_t{0};
  struct alignas(64) Lane {
    std::atomic<uint64_t> tickets{0};  ///< given out
    std::atomic<uint64_t> served{0};   ///< whose turns are over
  };
  /// Somebody takes tickets: those of one set come before or behind those of another in all lanes.
  alignas(64) std::atomic<uint32_t> busy{0};
  Lane lanes[kLanes];
};

/// What a stream or a kernel waits for must not stand behind a wait of another set, neither in a
/// hardware queue nor for want of room on the GPU, and no call of the driver may wait for what only
/// that call's thread will launch elsewhere. Sets that have a rank in common begin in no common
/// order, so the host gives them one: a set's waits are enqueued when it is its turn in the lanes
/// of all its ranks, and the turn is over once nothing of it waits on any of them. Then every wait
/// is for what is enqueued, or will be by a thread that nothing holds up.
///
/// A run that is dropped before it is through has seen the job aborted, and no turn comes after it.
class Ticket {
 public:
  explicit Ticket(GpuGroup& gpu_group);
  /// Whether it is this run's. To be asked until it is; `true` from then on.
  [[nodiscard]] bool HasCome();
  /// Nothing of this rank waits any more. Once, after it has come.
  void Pass();

 private:
  [[nodiscard]] bool TakeTickets();
  [[nodiscard]] bool IsServed() const;

  GpuGroup& gpu_group_;
  const uint64_t number_;                                ///< among the GPU group's
  std::array<uint64_t, TicketLanes::kLanes> tickets_{};  ///< the leader's, by lane
  bool asked_ = false;
  bool come_ = false;
};

}  // namespace horoacc::cuda
