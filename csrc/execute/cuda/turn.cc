#include "execute/cuda/turn.h"

#include "execute/cuda/team.h"

namespace horoacc::cuda {

Turn::Turn(Team& team) : team_(team), number_(team.NextTurn()) {}

// The leader asks for all. A rank alone waits for nobody.
bool Turn::HasCome() {
  if (come_ || team_.ranks() == 1) return true;
  TurnBoard& board = team_.turns();
  std::atomic<uint64_t>& given = team_.card(Team::kLeader).turns;
  if (team_.me() != Team::kLeader) {
    come_ = given.load(std::memory_order_acquire) >= number_;
    return come_;
  }
  if (!asked_) ticket_ = board.tickets.fetch_add(1, std::memory_order_relaxed);
  asked_ = true;
  if (board.served.load(std::memory_order_acquire) != ticket_) return false;
  board.left.store(team_.ranks(), std::memory_order_relaxed);
  given.store(number_, std::memory_order_release);
  team_.RingOthers();
  come_ = true;
  return true;
}

void Turn::Pass() {
  if (team_.ranks() == 1) return;
  TurnBoard& board = team_.turns();
  if (board.left.fetch_sub(1, std::memory_order_acq_rel) == 1)
    board.served.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace horoacc::cuda
