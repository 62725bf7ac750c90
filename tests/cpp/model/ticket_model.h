#pragma once
// Tickets of process sets (execute/cuda/host/ticket.h, whose BasicTicket this runs): ranks, each
// with one hardware queue and one lane, and sets of two of them whose decisions every rank carries
// out in an order of its own.
#include "execute/cuda/host/ticket.h"
#include "model/explore.h"
#include "model/replay.h"

namespace horoacc::model {

enum class TicketFault {
  kNone,
  kNoTickets,     ///< enqueues waits whenever there is something to do
  kEarlyRelease,  ///< the first of its ranks releases the set's ticket
  kLostTicket,    ///< a ticket is given to two
  kSplitTickets,  ///< others take theirs between a set's
};

/// Two sets of the same ranks. The first `kSpanning` sets have a host for each of their ranks,
/// which takes a ticket for itself; of all others both ranks share one.
struct BothSets {
  static constexpr uint32_t kRanks = 2, kSets = 2, kSpanning = 0;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {0, 1}};
};

/// Sets that have one rank in common with each of the others: each rank is the leader of one.
struct ThreeInARing {
  static constexpr uint32_t kRanks = 3, kSets = 3, kSpanning = 0;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {1, 2}, {2, 0}};
};

/// Two hosts of two ranks: a set across them, and one inside each.
struct OneAcrossHosts {
  static constexpr uint32_t kRanks = 4, kSets = 3, kSpanning = 1;
  static constexpr uint32_t kMember[kSets][2] = {{0, 2}, {0, 1}, {2, 3}};
};

/// Two sets across them with no rank in common, but with the sets inside.
struct TwoAcrossHosts {
  static constexpr uint32_t kRanks = 4, kSets = 4, kSpanning = 2;
  static constexpr uint32_t kMember[kSets][2] = {{0, 2}, {1, 3}, {0, 1}, {2, 3}};
};

template <typename Shape>
struct TicketState;

/// A set on one of its ranks, as a ticket sees it.
template <typename Shape>
class TicketGroup {
 public:
  using TicketCount = uint8_t;
  static constexpr uint32_t kTicketLanes = Shape::kRanks;
  static constexpr uint32_t kLeader = 0;

  TicketGroup(TicketState<Shape>& state, uint32_t set, uint32_t member, TicketFault fault,
              Accesses& accesses)
      : s_(state), set_(set), member_(member), fault_(fault), accesses_(accesses) {}

  [[nodiscard]] bool spans() const { return set_ < Shape::kSpanning; }
  [[nodiscard]] uint32_t me() const { return spans() ? 0 : member_; }
  [[nodiscard]] uint32_t ranks() const { return spans() ? 1 : 2; }
  [[nodiscard]] bool alone() const { return false; }
  [[nodiscard]] uint64_t lanes() const {
    if (spans()) return uint64_t{1} << Shape::kMember[set_][member_];
    return uint64_t{1} << Shape::kMember[set_][0] | uint64_t{1} << Shape::kMember[set_][1];
  }
  void RingOthers() const {}

  struct Holders : ModelAtomic {
    bool too_few = false;
    void store(uint64_t value, std::memory_order order) const {
      ModelAtomic::store(too_few ? 1 : value, order);
    }
  };
  struct Info {
    ModelAtomic called;
    Holders holders;
  };
  [[nodiscard]] Info info(uint32_t) const {
    const uint32_t leader = spans() ? member_ : 0;
    return {{s_.called[set_][leader], accesses_},
            {{s_.holders[set_][leader], accesses_}, fault_ == TicketFault::kEarlyRelease}};
  }

  struct Busy : ModelAtomic {
    bool open = false;
    uint8_t exchange(uint64_t value, std::memory_order order) const {
      return open ? 0 : ModelAtomic::exchange(value, order);
    }
  };
  struct Counter : ModelAtomic {
    bool torn = false;
    uint8_t fetch_add(uint8_t more, std::memory_order order) const {
      if (!torn) return ModelAtomic::fetch_add(more, order);
      const uint8_t value = load(order);
      store(value + uint64_t{more}, order);
      return value;
    }
  };
  struct Lane {
    Counter tickets;
    ModelAtomic served;
  };
  struct Lanes {
    const TicketGroup& group;
    Lane operator[](uint32_t lane) const {
      const TicketFault fault = group.fault_;
      return {{{group.s_.tickets[lane], group.accesses_}, fault == TicketFault::kLostTicket},
              {group.s_.served[lane], group.accesses_}};
    }
  };
  struct All {
    Busy busy;
    Lanes lanes;
  };
  [[nodiscard]] All ticket_lanes() const {
    const bool open = fault_ == TicketFault::kLostTicket || fault_ == TicketFault::kSplitTickets;
    return {{{s_.busy, accesses_}, open}, {*this}};
  }

 private:
  TicketState<Shape>& s_;
  const uint32_t set_, member_;
  const TicketFault fault_;
  Accesses& accesses_;
};

template <typename Shape>
struct TicketState {
  /// Of a set, on its first or second rank.
  struct Run {
    horoacc::cuda::BasicTicket<TicketGroup<Shape>> ticket{1};
    AccessLog<10> log;
    uint8_t pc = 0;
    uint8_t calls = 0;  ///< that are over
  };
  Run run[Shape::kSets][2];
  uint8_t called[Shape::kSets][2] = {};  ///< in the leaders' peer infos
  uint8_t holders[Shape::kSets][2] = {};
  uint8_t word[Shape::kSets][2] = {};
  /// Work of the rank's only queue: 1 + twice the set, + 1 for a wait.
  uint8_t queue[Shape::kRanks][4] = {};
  uint8_t busy = 0, tickets[Shape::kRanks] = {}, served[Shape::kRanks] = {};
};

template <typename Shape>
class TicketModel {
 public:
  using State = TicketState<Shape>;
  using Run = typename State::Run;
  static constexpr uint32_t kSets = Shape::kSets;

  TicketModel(uint8_t calls, TicketFault fault) : calls_(calls), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2 * kSets + Shape::kRanks; }
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
  enum Place : uint8_t { kAsk, kTell, kWait, kEnd, kRelease };

  static constexpr uint32_t Rank(uint32_t set, uint32_t member) {
    return Shape::kMember[set][member];
  }

  Outcome Advance(State& s, uint32_t set, uint32_t member, const char** wrong) const {
    Run& run = s.run[set][member];
    if (run.calls == calls_) return Outcome::kBlocked;
    const uint32_t rank = Rank(set, member);
    switch (run.pc) {
      case kAsk: {
        bool called = fault_ == TicketFault::kNoTickets;
        const auto ask = [&](auto& ticket, Accesses& accesses) {
          TicketGroup<Shape> group(s, set, member, fault_, accesses);
          return ticket.IsCalled(group);
        };
        if (called || (Resume(run.ticket, run.log, ask, &called) && called)) run.pc = kTell;
        return Outcome::kMoved;
      }
      case kTell:
      case kWait:
        for (const uint8_t work : s.queue[rank]) {
          if (work != 0 && (work - 1U) / 2 != set && fault_ == TicketFault::kNone)
            *wrong = "two sets at once";
        }
        Put(s, rank, static_cast<uint8_t>(1 + 2 * set + (run.pc == kWait ? 1 : 0)));
        run.pc = run.pc == kTell ? kWait : kEnd;
        return Outcome::kMoved;
      case kEnd:
        for (const uint8_t work : s.queue[rank]) {
          if (work == 1 + 2 * set || work == 2 + 2 * set) return Outcome::kBlocked;
        }
        run.pc = kRelease;
        return Outcome::kMoved;
      default:
        return Release(s, set, member);
    }
  }

  Outcome Release(State& s, uint32_t set, uint32_t member) const {
    Run& run = s.run[set][member];
    bool released = fault_ == TicketFault::kNoTickets;
    const auto release = [&](auto& ticket, Accesses& accesses) {
      TicketGroup<Shape> group(s, set, member, fault_, accesses);
      ticket.Release(group);
      return true;
    };
    if (!released && !Resume(run.ticket, run.log, release, &released)) return Outcome::kMoved;
    const auto calls = static_cast<uint8_t>(run.calls + 1);
    run = {};
    run.calls = calls;
    run.ticket = decltype(run.ticket)(static_cast<uint8_t>(calls + 1));
    return Outcome::kMoved;
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
