#pragma once
// Tickets of process sets (execute/cuda/host/ticket.h, whose BasicTicket this runs): ranks, each
// with one hardware queue and one lane, and sets of two of them, whose decisions every rank carries
// out in an order of its own, two of a set at a time.
#include <algorithm>
#include <iterator>

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
  kEarlyCall,     ///< calls a ticket while the one before it is held, whoever holds that
};

/// Two sets of the same ranks. The first `kSpanning` sets have a host for each of their ranks,
/// which takes a ticket for itself; of all others both ranks share one.
struct BothSets {
  static constexpr uint32_t kRanks = 2, kSets = 2, kSpanning = 0;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {0, 1}};
};

/// Tickets of each may be in a row on a rank of its own, while the other's come between on the
/// rank that they share.
struct OneShared {
  static constexpr uint32_t kRanks = 3, kSets = 2, kSpanning = 0;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {1, 2}};
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

/// A host of two ranks and one of one: tickets in a row of the set across them, and of that inside.
struct OneBesideOneInside {
  static constexpr uint32_t kRanks = 3, kSets = 2, kSpanning = 1;
  static constexpr uint32_t kMember[kSets][2] = {{0, 2}, {0, 1}};
};

/// Two sets across two hosts of one rank. Sets without a common rank can wait for each other, too,
/// through sets inside the hosts: these have too many states.
struct TwoAcrossHosts {
  static constexpr uint32_t kRanks = 2, kSets = 2, kSpanning = 2;
  static constexpr uint32_t kMember[kSets][2] = {{0, 1}, {0, 1}};
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
  using Row = horoacc::cuda::TicketRow<TicketCount, kTicketLanes>;

  TicketGroup(TicketState<Shape>& state, Row& row, uint32_t set, uint32_t member, TicketFault fault,
              Accesses& accesses)
      : s_(state), row_(row), set_(set), member_(member), fault_(fault), accesses_(accesses) {}

  [[nodiscard]] bool spans() const { return set_ < Shape::kSpanning; }
  [[nodiscard]] uint32_t me() const { return spans() ? 0 : member_; }
  [[nodiscard]] uint32_t ranks() const { return spans() ? 1 : 2; }
  [[nodiscard]] bool alone() const { return false; }
  [[nodiscard]] uint64_t lanes() const {
    if (spans()) return uint64_t{1} << Shape::kMember[set_][member_];
    return uint64_t{1} << Shape::kMember[set_][0] | uint64_t{1} << Shape::kMember[set_][1];
  }
  void RingOthers() const {}
  [[nodiscard]] Row& ticket_row() const { return row_; }

  struct Holders : ModelAtomic {
    bool too_few = false;
    uint8_t fetch_add(uint8_t more, std::memory_order order) const {
      return ModelAtomic::fetch_add(too_few ? 1 : more, order);
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
  struct Served : ModelAtomic {
    bool early = false;
    uint8_t load(std::memory_order order) const {
      return static_cast<uint8_t>(ModelAtomic::load(order) + (early ? 1 : 0));
    }
  };
  struct Lane {
    Counter tickets;
    Served served;
  };
  struct Lanes {
    const TicketGroup& group;
    Lane operator[](uint32_t lane) const {
      const TicketFault fault = group.fault_;
      return {{{group.s_.tickets[lane], group.accesses_}, fault == TicketFault::kLostTicket},
              {{group.s_.served[lane], group.accesses_}, fault == TicketFault::kEarlyCall}};
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
  Row& row_;
  const uint32_t set_, member_;
  const TicketFault fault_;
  Accesses& accesses_;
};

template <typename Shape>
struct TicketState {
  /// A call of a set, on its first or second rank.
  struct Run {
    horoacc::cuda::BasicTicket<TicketGroup<Shape>> ticket{0};
    AccessLog<10> log;
    uint8_t pc = 0;
    uint8_t begun = 0;
  };
  /// A set there, whose calls come to each stage in their order; two runs serve them in turn.
  struct Member {
    Run run[2];
    uint8_t launched = 0, over = 0;
    uint8_t told = 0;  ///< by the other's stream
  };
  Member member[Shape::kSets][2];
  typename TicketGroup<Shape>::Row row[Shape::kSets][2];  ///< the leaders'
  uint8_t called[Shape::kSets][2] = {};                   ///< in the leaders' peer infos
  uint8_t holders[Shape::kSets][2] = {};
  /// Work of the rank's only queue: see TicketModel::WorkOf.
  uint8_t queue[Shape::kRanks][8] = {};
  uint8_t busy = 0, tickets[Shape::kRanks] = {}, served[Shape::kRanks] = {};
};

template <typename Shape>
class TicketModel {
 public:
  using State = TicketState<Shape>;
  using Run = typename State::Run;
  using Member = typename State::Member;
  static constexpr uint32_t kSets = Shape::kSets;

  TicketModel(uint8_t calls, TicketFault fault) : calls_(calls), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 4 * kSets + Shape::kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const auto& of_set : s.member) {
      for (const Member& member : of_set) {
        if (member.over != calls_) return false;
      }
    }
    return true;
  }

  /// The runs of the sets on their ranks, which may move in any order, and the ranks' queues.
  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process < 4 * kSets) return Advance(s, process / 4, process / 2 % 2, process % 2, wrong);
    return Execute(s, process - 4 * kSets);
  }

 private:
  enum Place : uint8_t { kAsk, kEnqueue, kEnd, kRelease };
  enum Kind : uint8_t { kTell, kAwait };

  static constexpr uint32_t Rank(uint32_t set, uint32_t member) {
    return Shape::kMember[set][member];
  }
  static uint8_t WorkOf(uint32_t set, uint32_t call, Kind kind) {
    return static_cast<uint8_t>(1 + (call * kSets + set) * 2 + kind);
  }
  static uint32_t SetOf(uint8_t work) { return (work - 1U) / 2 % kSets; }

  /// As ModeRun's stages: a call is launched, and is over, behind the one before it.
  Outcome Advance(State& s, uint32_t set, uint32_t member, uint32_t turn,
                  const char** wrong) const {
    Member& own = s.member[set][member];
    Run& run = own.run[turn];
    const uint32_t call = own.over + (own.over + turn) % 2;
    if (call >= calls_) return Outcome::kBlocked;
    auto& queue = s.queue[Rank(set, member)];
    switch (run.pc) {
      case kAsk: {
        if (own.launched != call) return Outcome::kBlocked;
        if (run.begun == 0) run.ticket = decltype(run.ticket)(static_cast<uint8_t>(call + 1));
        run.begun = 1;
        bool called = fault_ == TicketFault::kNoTickets;
        if (called || Resumed(s, set, member, run, &called,
                              [](auto& ticket, auto& group) { return ticket.IsCalled(group); })) {
          if (called) run.pc = kEnqueue;
        }
        return Outcome::kMoved;
      }
      case kEnqueue:
        for (const uint8_t work : queue) {
          if (work != 0 && SetOf(work) != set && fault_ == TicketFault::kNone)
            *wrong = "two sets at once";
        }
        for (const Kind kind : {kTell, kAwait}) Put(queue, WorkOf(set, call, kind), wrong);
        ++own.launched;
        run.pc = kEnd;
        return Outcome::kMoved;
      case kEnd:
        for (const uint8_t work : queue) {
          if (work == WorkOf(set, call, kAwait)) return Outcome::kBlocked;
        }
        if (own.over != call) return Outcome::kBlocked;
        run.pc = kRelease;
        return Outcome::kMoved;
      default: {
        bool released = fault_ == TicketFault::kNoTickets;
        const auto release = [](auto& ticket, auto& group) {
          ticket.Release(group);
          return true;
        };
        if (!released && !Resumed(s, set, member, run, &released, release)) return Outcome::kMoved;
        run = {};
        ++own.over;
        return Outcome::kMoved;
      }
    }
  }

  /// A step of a call of the run's ticket.
  template <typename Call>
  bool Resumed(State& s, uint32_t set, uint32_t member, Run& run, bool* result,
               const Call& call) const {
    auto& row = s.row[set][set < Shape::kSpanning ? member : 0];
    struct {
      decltype(run.ticket) ticket;
      typename TicketGroup<Shape>::Row row;
    } object{run.ticket, row};
    const auto step = [&](auto& of, Accesses& accesses) {
      TicketGroup<Shape> group(s, of.row, set, member, fault_, accesses);
      return call(of.ticket, group);
    };
    const bool over = Resume(object, run.log, step, result);
    run.ticket = object.ticket;
    row = object.row;
    return over;
  }

  template <size_t kPlaces>
  static void Put(uint8_t (&queue)[kPlaces], uint8_t work, const char** wrong) {
    for (uint8_t& place : queue) {
      if (place != 0) continue;
      place = work;
      return;
    }
    *wrong = "too much in a queue";
  }

  // The queue runs what stands first, and nothing else before that.
  Outcome Execute(State& s, uint32_t rank) const {
    auto& queue = s.queue[rank];
    if (queue[0] == 0) return Outcome::kBlocked;
    const uint32_t set = SetOf(queue[0]);
    const uint32_t call = (queue[0] - 1U) / 2 / kSets;
    const uint32_t member = Rank(set, 0) == rank ? 0 : 1;
    if ((queue[0] - 1) % 2 == kTell) {
      ++s.member[set][1 - member].told;
    } else if (s.member[set][member].told <= call) {
      return Outcome::kBlocked;
    }
    std::copy(queue + 1, std::end(queue), queue);
    *(std::end(queue) - 1) = 0;
    return Outcome::kMoved;
  }

  const uint8_t calls_;
  const TicketFault fault_;
};

}  // namespace horoacc::model
