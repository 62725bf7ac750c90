#pragma once
// Tickets for process sets whose GPUs wait for each other: a rank's GPU works for one of them at a
// time.
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace horoacc::cuda {

class GpuGroup;

/// On the control segment, in zeroed memory. Every rank of the host has a lane (ranks 64 apart
/// share one), and each lane calls its tickets in order. A rank whose process has other ranks, or
/// whose GPU's queues other processes share by MPS, takes its tickets in all lanes.
struct TicketLanes {
  static constexpr uint32_t kLanes = 64;
  static constexpr uint64_t kAllLanes = ~uint64_t{0};
  struct alignas(64) Lane {
    std::atomic<uint64_t> tickets{0};  ///< taken
    std::atomic<uint64_t> served{0};   ///< released; the number of the ticket that is called
  };
  /// A lock, held while tickets are taken: those of one set come before or behind those of another
  /// in all lanes.
  alignas(64) std::atomic<uint32_t> busy{0};
  /// 1 + the number of the process set whose GPUs wait for those of other hosts; 0: none do.
  std::atomic<uint32_t> spanning{0};
  Lane lanes[kLanes];
};

/// The tickets of a set between which no other set has taken one, on its leader: by lane, the first
/// of the latest such row, and the number behind it.
template <typename Count, uint32_t kLanes>
struct TicketRow {
  std::array<Count, kLanes> first{}, end{};
};

/// A stream or a kernel must not wait for work that stands behind a wait of another set in a
/// hardware queue, that has no room on the GPU because of one, or that a thread will enqueue only
/// after a call of the driver that waits for this GPU. Sets that have a rank in common begin in no
/// common order, so the host gives them one: a set's leader takes a ticket in the lanes of all its
/// ranks, the set's waits are enqueued once all of these are called, and the ticket is released
/// once nothing of the set waits on any of its ranks. Then the awaited work is enqueued already, or
/// a thread that nothing holds up will enqueue it.
///
/// Of a set on several hosts each host takes a ticket for itself, and the waits end once the last
/// host's is called. Tickets of two such sets might be called in different orders on two hosts,
/// each ahead of the other, or of a set inside the host that waits for the other: so a host takes
/// part in one such set at a time. Then all that is ahead of its ticket waits for this host alone.
///
/// A set has a ticket for each bucket. Those in a row in all lanes are as one: the next is called
/// while the set still holds those before, so that its buckets follow each other on the streams
/// without a turn of the hosts. Another set's ticket ends the row.
///
/// A run that is dropped early has seen the job aborted, and no other set's ticket is called after
/// its own.
///
/// `Group`: GpuGroup, or the one of tests/cpp/model/ticket_model.h.
template <typename Group>
class BasicTicket {
 public:
  using Count = typename Group::TicketCount;
  /// `number`: of the ticket among the GPU group's.
  explicit BasicTicket(Count number) : number_(number) {}

  /// Whether this run's GPUs may wait now. To be asked until it is true, which it then stays.
  [[nodiscard]] bool IsCalled(Group& group) {
    if (called_ != 0 || group.alone()) return true;
    auto&& leader = group.info(Group::kLeader);
    if (group.me() != Group::kLeader) {
      called_ = leader.called.load(std::memory_order_acquire) >= number_ ? 1 : 0;
      return called_ != 0;
    }
    if (taken_ == 0) taken_ = Take(group) ? 1 : 0;
    if (taken_ == 0 || !IsServed(group)) return false;
    leader.holders.fetch_add(group.ranks(), std::memory_order_relaxed);
    leader.called.store(number_, std::memory_order_release);
    group.RingOthers();
    called_ = 1;
    return true;
  }

  /// Nothing of this rank waits for this ticket's bucket any more. Once, after it was called. Ranks
  /// may release tickets of a row in any order: lanes go on once there were as many releases as a
  /// ticket has ranks, and another set waits for the row's last.
  void Release(Group& group) {
    if (group.alone()) return;
    auto&& leader = group.info(Group::kLeader);
    if ((leader.holders.fetch_sub(1, std::memory_order_acq_rel) - 1U) % group.ranks() != 0) return;
    ForEachLane(group, [&](uint32_t lane) {
      group.ticket_lanes().lanes[lane].served.fetch_add(1, std::memory_order_acq_rel);
    });
  }

 private:
  template <typename Body>
  static void ForEachLane(Group& group, Body body) {
    for (uint64_t lanes = group.lanes(); lanes != 0; lanes &= lanes - 1)
      body(static_cast<uint32_t>(std::countr_zero(lanes)));
  }

  // The leader takes the tickets of all ranks. False: another thread holds the lock; ask again.
  bool Take(Group& group) {
    auto&& all = group.ticket_lanes();
    if (all.busy.exchange(1, std::memory_order_acquire) != 0) return false;
    ForEachLane(group, [&](uint32_t lane) {
      const Count ticket = all.lanes[lane].tickets.fetch_add(1, std::memory_order_relaxed);
      auto& row = group.ticket_row();
      if (row.end[lane] != ticket) row.first[lane] = ticket;
      row.end[lane] = static_cast<Count>(ticket + 1);
      first_[lane] = row.first[lane];
    });
    all.busy.store(0, std::memory_order_release);
    return true;
  }

  bool IsServed(Group& group) const {
    bool served = true;
    ForEachLane(group, [&](uint32_t lane) {
      auto&& now = group.ticket_lanes().lanes[lane].served;
      served = served && now.load(std::memory_order_acquire) >= first_[lane];
    });
    return served;
  }

  Count number_;
  std::array<Count, Group::kTicketLanes> first_{};  ///< of the leader's row, by lane
  uint8_t taken_ = 0;                               ///< flags as bytes: models compare them
  uint8_t called_ = 0;
};

using Ticket = BasicTicket<GpuGroup>;

}  // namespace horoacc::cuda
