#include "execute/cuda/turn.h"

#include <bit>

#include "execute/cuda/team.h"

namespace horoacc::cuda {
namespace {

template <typename Body>
void ForEachLane(uint64_t lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1) body(std::countr_zero(lanes));
}

}  // namespace

Turn::Turn(Team& team) : team_(team), number_(team.NextTurn()) {}

// Nobody waits for who is in the middle of it: all ask again.
bool Turn::TakeTickets() {
  TurnBoard& board = team_.turns();
  if (board.busy.exchange(1, std::memory_order_acquire) != 0) return false;
  ForEachLane(team_.lanes(), [&](int lane) {
    tickets_[lane] = board.lanes[lane].tickets.fetch_add(1, std::memory_order_relaxed);
  });
  board.busy.store(0, std::memory_order_release);
  return true;
}

bool Turn::IsServed() const {
  bool served = true;
  ForEachLane(team_.lanes(), [&](int lane) {
    const auto& now = team_.turns().lanes[lane].served;
    served = served && now.load(std::memory_order_acquire) == tickets_[lane];
  });
  return served;
}

// The leader asks for all. A rank alone waits for nobody.
bool Turn::HasCome() {
  if (come_ || team_.ranks() == 1) return true;
  TeamCard& leader = team_.card(Team::kLeader);
  if (team_.me() != Team::kLeader) {
    come_ = leader.turns.load(std::memory_order_acquire) >= number_;
    return come_;
  }
  asked_ = asked_ || TakeTickets();
  if (!asked_ || !IsServed()) return false;
  leader.in_turn.store(team_.ranks(), std::memory_order_relaxed);
  leader.turns.store(number_, std::memory_order_release);
  team_.RingOthers();
  come_ = true;
  return true;
}

void Turn::Pass() {
  if (team_.ranks() == 1) return;
  TeamCard& leader = team_.card(Team::kLeader);
  if (leader.in_turn.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  ForEachLane(team_.lanes(), [&](int lane) {
    team_.turns().lanes[lane].served.fetch_add(1, std::memory_order_acq_rel);
  });
}

}  // namespace horoacc::cuda
