#include "execute/cuda/host/ticket.h"

#include <bit>

#include "execute/cuda/host/gpu_group.h"

namespace horoacc::cuda {
namespace {

template <typename Body>
void ForEachLane(uint64_t lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1) body(std::countr_zero(lanes));
}

}  // namespace

Ticket::Ticket(GpuGroup& gpu_group) : gpu_group_(gpu_group), number_(gpu_group.NextTurn()) {}

// Nobody waits for who is in the middle of it: all ask again.
bool Ticket::TakeTickets() {
  TicketLanes& control = gpu_group_.turns();
  if (control.busy.exchange(1, std::memory_order_acquire) != 0) return false;
  ForEachLane(gpu_group_.lanes(), [&](int lane) {
    tickets_[lane] = control.lanes[lane].tickets.fetch_add(1, std::memory_order_relaxed);
  });
  control.busy.store(0, std::memory_order_release);
  return true;
}

bool Ticket::IsServed() const {
  bool served = true;
  ForEachLane(gpu_group_.lanes(), [&](int lane) {
    const auto& now = gpu_group_.turns().lanes[lane].served;
    served = served && now.load(std::memory_order_acquire) == tickets_[lane];
  });
  return served;
}

// The leader asks for all. A rank alone waits for nobody.
bool Ticket::HasCome() {
  if (come_ || gpu_group_.ranks() == 1) return true;
  GpuPeerInfo& leader = gpu_group_.info(GpuGroup::kLeader);
  if (gpu_group_.me() != GpuGroup::kLeader) {
    come_ = leader.turns.load(std::memory_order_acquire) >= number_;
    return come_;
  }
  asked_ = asked_ || TakeTickets();
  if (!asked_ || !IsServed()) return false;
  leader.in_turn.store(gpu_group_.ranks(), std::memory_order_relaxed);
  leader.turns.store(number_, std::memory_order_release);
  gpu_group_.RingOthers();
  come_ = true;
  return true;
}

void Ticket::Pass() {
  if (gpu_group_.ranks() == 1) return;
  GpuPeerInfo& leader = gpu_group_.info(GpuGroup::kLeader);
  if (leader.in_turn.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  ForEachLane(gpu_group_.lanes(), [&](int lane) {
    gpu_group_.turns().lanes[lane].served.fetch_add(1, std::memory_order_acq_rel);
  });
}

}  // namespace horoacc::cuda
