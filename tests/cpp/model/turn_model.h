#pragma once
// Turns of process sets (execute/cuda/turn.h): two ranks, each with one hardware queue, and two
// sets of both whose decisions every rank carries out in an order of its own.
#include "model/explore.h"

namespace horoacc::model {

enum class TurnFault {
  kNone,
  kNoTurns,     ///< enqueues waits whenever there is something to do
  kHalfATurn,   ///< the turn is over when it is on the first rank
  kLostTicket,  ///< a ticket is given to two
};

class TurnModel {
 public:
  static constexpr uint32_t kRanks = 2;
  static constexpr uint32_t kSets = 2;
  struct Run {
    uint8_t pc = 0;
    uint8_t ticket = 0;  ///< rank 0's
    uint8_t calls = 0;   ///< that are over
  };
  struct State {
    Run run[kRanks][kSets];
    uint8_t given[kSets] = {};  ///< turns, on the leader's card
    uint8_t word[kRanks][kSets] = {};
    /// Work of the rank's only queue: 1 + twice the set, + 1 for a wait.
    uint8_t queue[kRanks][2 * kSets] = {};
    uint8_t tickets = 0, served = 0, left = 0;
  };

  TurnModel(uint8_t calls, TurnFault fault) : calls_(calls), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return kRanks * (kSets + 1); }
  [[nodiscard]] bool Done(const State& s) const {
    for (const auto& of_rank : s.run) {
      for (const Run& run : of_rank) {
        if (run.calls != calls_) return false;
      }
    }
    return true;
  }

  /// A rank's runs, which may move in any order, and its queue.
  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    const uint32_t rank = process / (kSets + 1);
    const uint32_t set = process % (kSets + 1);
    return set == kSets ? Execute(s, rank) : Advance(s, rank, set, wrong);
  }

 private:
  enum Place : uint8_t { kAsk, kAwaitTurn, kTell, kWait, kEnd, kCountTicket };

  Outcome Advance(State& s, uint32_t rank, uint32_t set, const char** wrong) const {
    Run& run = s.run[rank][set];
    if (run.calls == calls_) return Outcome::kBlocked;
    switch (run.pc) {
      case kAsk:
        run.pc = kAwaitTurn;
        if (fault_ == TurnFault::kNoTurns) run.pc = kTell;
        if (rank != 0 || fault_ == TurnFault::kNoTurns) return Outcome::kMoved;
        run.ticket = s.tickets;
        if (fault_ == TurnFault::kLostTicket) {
          run.pc = kCountTicket;
        } else {
          ++s.tickets;
        }
        return Outcome::kMoved;
      case kCountTicket:
        s.tickets = static_cast<uint8_t>(run.ticket + 1);
        run.pc = kAwaitTurn;
        return Outcome::kMoved;
      case kAwaitTurn:
        if (rank != 0) {
          if (s.given[set] <= run.calls) return Outcome::kBlocked;
        } else {
          if (s.served != run.ticket) return Outcome::kBlocked;
          if (s.left != 0 && fault_ == TurnFault::kNone) *wrong = "two turns at once";
          s.left = fault_ == TurnFault::kHalfATurn ? 1 : kRanks;
          ++s.given[set];
        }
        run.pc = kTell;
        return Outcome::kMoved;
      case kTell:
      case kWait:
        Put(s, rank, static_cast<uint8_t>(1 + 2 * set + (run.pc == kWait ? 1 : 0)));
        run.pc = run.pc == kTell ? kWait : kEnd;
        return Outcome::kMoved;
      default:  // kEnd
        for (const uint8_t work : s.queue[rank]) {
          if (work == 1 + 2 * set || work == 2 + 2 * set) return Outcome::kBlocked;
        }
        ++run.calls;
        run.pc = kAsk;
        if (fault_ != TurnFault::kNoTurns && s.left > 0 && --s.left == 0) ++s.served;
        return Outcome::kMoved;
    }
  }

  static void Put(State& s, uint32_t rank, uint8_t work) {
    for (uint8_t& place : s.queue[rank]) {
      if (place != 0) continue;
      place = work;
      return;
    }
  }

  // The queue runs what stands first, and nothing else before that.
  Outcome Execute(State& s, uint32_t rank) const {
    auto& queue = s.queue[rank];
    if (queue[0] == 0) return Outcome::kBlocked;
    const uint32_t set = (queue[0] - 1U) / 2;
    if (queue[0] % 2 == 1) {
      ++s.word[1 - rank][set];
    } else if (s.word[rank][set] <= s.run[rank][set].calls) {
      return Outcome::kBlocked;
    }
    for (uint32_t k = 0; k + 1 < 2 * kSets; ++k) queue[k] = queue[k + 1];
    queue[2 * kSets - 1] = 0;
    return Outcome::kMoved;
  }

  const uint8_t calls_;
  const TurnFault fault_;
};

}  // namespace horoacc::model
