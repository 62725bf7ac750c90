#pragma once
// Turns of process sets (execute/cuda/host/ticket.h): ranks, each with one hardware queue and one
// lane, and sets of two of them whose decisions every rank carries out in an order of its own.
#include "model/explore.h"

namespace horoacc::model {

enum class TicketFault {
  kNone,
  kNoTurns,       ///< enqueues waits whenever there is something to do
  kHalfATurn,     ///< the turn is over when it is on the first rank
  kLostTicket,    ///< a ticket is given to two
  kSplitTickets,  ///< others take theirs between a set's
};

/// Two sets of the same ranks.
struct BothSets {
  static constexpr uint32_t kRanks = 2, kSets = 2;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {0, 1}};
};

/// Sets that have one rank in common with each of the others: each rank is the leader of one.
struct ThreeInARing {
  static constexpr uint32_t kRanks = 3, kSets = 3;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {1, 2}, {2, 0}};
};

template <typename Shape>
class TicketModel {
 public:
  static constexpr uint32_t kRanks = Shape::kRanks;
  static constexpr uint32_t kSets = Shape::kSets;
  /// Of a set, on its first or second rank.
  struct Run {
    uint8_t pc = 0;
    uint8_t ticket[2] = {};  ///< the first's, in the lanes of both
    uint8_t calls = 0;       ///< that are over
  };
  struct State {
    Run run[kSets][2];
    uint8_t given[kSets] = {};  ///< turns, on the leader's card
    uint8_t in_turn[kSets] = {};
    uint8_t word[kSets][2] = {};
    /// Work of the rank's only queue: 1 + twice the set, + 1 for a wait.
    uint8_t queue[kRanks][4] = {};
    uint8_t tickets[kRanks] = {}, served[kRanks] = {};
  };

  TicketModel(uint8_t calls, TicketFault fault) : calls_(calls), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2 * kSets + kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const auto& of_set : s.run) {
      for (const Run& run : of_set) {
        if (run.calls != calls_) return false;
      }
    }
    return true;
  }

  /// The runs of the sets on their ranks, which may move in any order, and the ranks' queues.
  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process < 2 * kSets) return Advance(s, process / 2, process % 2, wrong);
    return Execute(s, process - 2 * kSets);
  }

 private:
  enum Place : uint8_t { kAsk, kSecondTicket, kCountTicket, kAwaitTurn, kTell, kWait, kEnd };

  static constexpr uint32_t Rank(uint32_t set, uint32_t member) {
    return Shape::kMember[set][member];
  }

  Outcome Advance(State& s, uint32_t set, uint32_t member, const char** wrong) const {
    Run& run = s.run[set][member];
    if (run.calls == calls_) return Outcome::kBlocked;
    const uint32_t rank = Rank(set, member);
    switch (run.pc) {
      case kAsk:
        if (fault_ == TicketFault::kNoTurns) {
          run.pc = kTell;
        } else if (member != 0) {
          run.pc = kAwaitTurn;
        } else {
          Ask(s, run, set);
        }
        return Outcome::kMoved;
      case kSecondTicket:
        run.ticket[1] = s.tickets[Rank(set, 1)]++;
        run.pc = kAwaitTurn;
        return Outcome::kMoved;
      case kCountTicket:
        for (const uint32_t m : {0, 1})
          s.tickets[Rank(set, m)] = static_cast<uint8_t>(run.ticket[m] + 1);
        run.pc = kAwaitTurn;
        return Outcome::kMoved;
      case kAwaitTurn:
        if (member != 0) {
          if (s.given[set] <= run.calls) return Outcome::kBlocked;
        } else {
          for (const uint32_t m : {0, 1}) {
            if (s.served[Rank(set, m)] != run.ticket[m]) return Outcome::kBlocked;
          }
          s.in_turn[set] = fault_ == TicketFault::kHalfATurn ? 1 : 2;
          ++s.given[set];
        }
        run.pc = kTell;
        return Outcome::kMoved;
      case kTell:
      case kWait:
        for (const uint8_t work : s.queue[rank]) {
          if (work != 0 && (work - 1U) / 2 != set && fault_ == TicketFault::kNone)
            *wrong = "two turns at once";
        }
        Put(s, rank, static_cast<uint8_t>(1 + 2 * set + (run.pc == kWait ? 1 : 0)));
        run.pc = run.pc == kTell ? kWait : kEnd;
        return Outcome::kMoved;
      default:  // kEnd
        for (const uint8_t work : s.queue[rank]) {
          if (work == 1 + 2 * set || work == 2 + 2 * set) return Outcome::kBlocked;
        }
        ++run.calls;
        run.pc = kAsk;
        if (s.in_turn[set] > 0 && --s.in_turn[set] == 0) {
          for (const uint32_t m : {0, 1}) ++s.served[Rank(set, m)];
        }
        return Outcome::kMoved;
    }
  }

  // What is done while the control segment is busy is one step to the others.
  void Ask(State& s, Run& run, uint32_t set) const {
    run.pc = kAwaitTurn;
    for (const uint32_t m : {0, 1}) {
      run.ticket[m] = s.tickets[Rank(set, m)];
      if (fault_ == TicketFault::kLostTicket) {
        run.pc = kCountTicket;
        continue;
      }
      ++s.tickets[Rank(set, m)];
      if (fault_ != TicketFault::kSplitTickets) continue;
      run.pc = kSecondTicket;
      return;
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
    const uint32_t member = Rank(set, 0) == rank ? 0 : 1;
    if (queue[0] % 2 == 1) {
      ++s.word[set][1 - member];
    } else if (s.word[set][member] <= s.run[set][member].calls) {
      return Outcome::kBlocked;
    }
    for (uint32_t k = 0; k + 1 < 4; ++k) queue[k] = queue[k + 1];
    queue[3] = 0;
    return Outcome::kMoved;
  }

  const uint8_t calls_;
  const TicketFault fault_;
};

}  // namespace horoacc::model
