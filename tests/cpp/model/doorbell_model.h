#pragma once
// A rank's doorbell with its two sleepers (transport/wake/doorbell_rules.h, whose functions this
// runs): a caller that drives the engine until its result has come, the coordinator, and other
// ranks that ring: one with the caller's result, which is no work, the others with work that this
// rank must take whether a caller drives or not. No sleep has a time limit here.
#include "model/explore.h"
#include "model/replay.h"
#include "transport/wake/doorbell_rules.h"

namespace horoacc::model {

/// What a careless implementation would do.
enum class BellFault {
  kNone,
  kDeafSleep,      ///< a thread does not look once more before it sleeps
  kSleepOnCount,   ///< sleeps while the count stands, though a ring of before may have taken the
                   ///< announcement back
  kBufferedStore,  ///< says that it sleeps by a plain store, which a core may hold back
  kQuietWork,      ///< work is rung as what needs no coordinator
  kSilentLeave,    ///< a caller that stops driving does not look whether it was rung meanwhile
};

class DoorbellModel {
 public:
  enum Sleeper : uint8_t { kCaller, kCoordinator };
  static constexpr uint32_t kRingers = 3;  // the first brings the caller's result

  struct Thread {
    uint8_t pc = 0;
    uint8_t seen = 0;
    uint8_t done = 0;  ///< rings, or waits, that are over
    AccessLog<9> log;
  };
  struct State {
    uint8_t count = 0, driven = 0, coordinator_word = 0;
    uint8_t announced[2] = {};
    uint8_t buffered[2] = {};  ///< 1 + an announcement that no other thread sees yet
    uint8_t asleep[2] = {};    ///< in the kernel, on the futex
    uint8_t edge[2] = {};      ///< the eventfd was written since the sleeper's poll looked
    uint8_t lock = 0;          ///< the driver's
    uint8_t result = 0, posted = 0, taken = 0;
    Thread thread[2];
    Thread ringer[kRingers];
  };

  /// `links`: threads sleep in a poll where they may, and not on futexes. `work`: rings of each
  /// rank that brings work.
  DoorbellModel(bool links, uint8_t ringers, uint8_t work, BellFault fault)
      : links_(links), ringers_(ringers), work_(work), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  /// The two sleepers, their store buffers, and the ringers.
  [[nodiscard]] uint32_t processes() const { return 4 + ringers_; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < ringers_; ++r) {
      if (s.ringer[r].done < Rings(r)) return false;
    }
    return s.thread[kCaller].done == 1 && s.taken == s.posted;
  }

  Outcome Step(State& s, uint32_t process, const char** /*wrong*/) const {
    if (process == kCaller) return Drive(s);
    if (process == kCoordinator) return Coordinate(s);
    if (process < 4) return Drain(s, process - 2);
    return Ring(s, process - 4);
  }

 private:
  enum Place : uint8_t { kEnter, kTurn, kSleep, kLeave };

  struct Announced {
    State& s;
    Accesses& accesses;
    Sleeper who;
    bool buffers;

    void store(uint32_t value, std::memory_order) const {
      accesses.Do([&] {
        if (buffers) {
          s.buffered[who] = static_cast<uint8_t>(1 + value);
        } else {
          s.announced[who] = static_cast<uint8_t>(value);
        }
        return uint8_t{0};
      });
    }
    uint8_t load(std::memory_order order) const {
      return ModelAtomic{s.announced[who], accesses}.load(order);
    }
    uint8_t exchange(uint32_t value, std::memory_order order) const {
      return ModelAtomic{s.announced[who], accesses}.exchange(value, order);
    }
  };
  /// The word that is looked at before a sleep.
  struct Word : ModelAtomic {
    bool deaf;
    uint32_t seen;
    uint32_t load(std::memory_order order) const { return deaf ? seen : ModelAtomic::load(order); }
  };
  struct Bell {
    ModelAtomic count, driven, coordinator_word;
    Announced waiter, coordinator;
  };

  [[nodiscard]] Bell BellOf(State& s, Accesses& accesses) const {
    const bool buffers = fault_ == BellFault::kBufferedStore;
    return {{s.count, accesses},
            {s.driven, accesses},
            {s.coordinator_word, accesses},
            {s, accesses, kCaller, buffers},
            {s, accesses, kCoordinator, buffers}};
  }
  // The kernel's side of a wake-up.
  static auto Waker(State& s, Accesses& accesses) {
    return [&s, &accesses](const Announced& announced, uint32_t how) {
      accesses.Do([&] {
        if (how == doorbell::kOnFutex) s.asleep[announced.who] = 0;
        if (how == doorbell::kInPoll) s.edge[kCaller] = s.edge[kCoordinator] = 1;
        return uint8_t{0};
      });
    };
  }
  [[nodiscard]] uint8_t Rings(uint32_t ringer) const { return ringer == 0 ? 1 : work_; }

  /// One step more of `call`; true once it has returned.
  template <typename Call>
  static Outcome Advance(Thread& me, const Call& call, bool* over) {
    Accesses accesses(me.log);
    call(accesses);
    *over = !accesses.cut();
    if (*over) me.log = {};
    return accesses.blocked() ? Outcome::kBlocked : Outcome::kMoved;
  }

  void SleepOn(State& s, Accesses& accesses, Sleeper who, bool in_poll) const {
    Bell bell = BellOf(s, accesses);
    const uint32_t seen = s.thread[who].seen;
    ModelAtomic& on = who == kCaller ? bell.count : bell.coordinator_word;
    const Word word{on, fault_ == BellFault::kDeafSleep, seen};
    const uint32_t how = in_poll ? doorbell::kInPoll : doorbell::kOnFutex;
    doorbell::SleepOn(who == kCaller ? bell.waiter : bell.coordinator, word, seen, how, [&] {
      if (in_poll) {
        if (accesses.fresh() && s.edge[who] == 0) return accesses.Block();
        accesses.Do([&] { return s.edge[who] = 0; });
        return;
      }
      accesses.Do([&] {  // the kernel compares, and puts the thread to sleep
        const uint8_t shown = s.buffered[who] != 0 ? s.buffered[who] - 1 : s.announced[who];
        const bool sleeps =
            fault_ == BellFault::kSleepOnCount ? on.byte == seen : shown == doorbell::kOnFutex;
        return s.asleep[who] = sleeps ? 1 : 0;
      });
      if (accesses.fresh() && s.asleep[who] != 0) return accesses.Block();
      accesses.Do([&] { return uint8_t{0}; });
    });
  }

  // Waits::TryDrive and the end of Driver::Lock.
  Outcome Drive(State& s) const {
    Thread& me = s.thread[kCaller];
    if (me.done != 0) return Outcome::kBlocked;
    bool over = false;
    Outcome moved = Outcome::kMoved;
    switch (me.pc) {
      case kEnter:
        moved = Advance(
            me,
            [&](Accesses& accesses) {
              if (accesses.fresh() && s.lock != 0) return accesses.Block();
              ModelAtomic{s.lock, accesses}.store(1, {});
              ModelAtomic{s.driven, accesses}.store(1, {});
            },
            &over);
        if (over) me.pc = kTurn;
        return moved;
      case kTurn: {
        uint8_t seen = 0, result = 0;
        moved = Advance(
            me,
            [&](Accesses& accesses) {
              seen = ModelAtomic{s.count, accesses}.load({});
              accesses.Do([&] { return s.taken = s.posted; });
              result = ModelAtomic{s.result, accesses}.load({});
            },
            &over);
        if (!over) return moved;
        me.seen = seen;
        me.pc = result != 0 ? kLeave : kSleep;
        return moved;
      }
      case kSleep:
        moved =
            Advance(me, [&](Accesses& accesses) { SleepOn(s, accesses, kCaller, links_); }, &over);
        if (over) me.pc = kTurn;
        return moved;
      default:
        moved = Advance(
            me,
            [&](Accesses& accesses) {
              ModelAtomic{s.driven, accesses}.store(0, {});
              ModelAtomic{s.lock, accesses}.store(0, {});
              const bool rung = ModelAtomic{s.count, accesses}.load({}) != me.seen;
              if (accesses.cut() || !rung || fault_ == BellFault::kSilentLeave) return;
              doorbell::WakeCoordinator(BellOf(s, accesses), Waker(s, accesses));
            },
            &over);
        if (over) me.done = 1;
        return moved;
    }
  }

  // Coordinator::RunTurns: looks, drives if no caller does, sleeps.
  Outcome Coordinate(State& s) const {
    Thread& me = s.thread[kCoordinator];
    bool over = false;
    if (me.pc == kEnter) {
      uint8_t seen = 0;
      bool drives = false;
      const Outcome moved = Advance(
          me,
          [&](Accesses& accesses) {
            seen = ModelAtomic{s.coordinator_word, accesses}.load({});
            drives = ModelAtomic{s.driven, accesses}.load({}) == 0 &&
                     ModelAtomic{s.lock, accesses}.exchange(1, {}) == 0;
            if (accesses.cut() || !drives) return;
            accesses.Do([&] { return s.taken = s.posted; });
            ModelAtomic{s.lock, accesses}.store(0, {});
          },
          &over);
      if (!over) return moved;
      me.seen = seen;
      me.pc = drives ? kTurn : kSleep;
      return moved;
    }
    const bool in_poll = links_ && me.pc == kTurn;  // a caller that drives reads the links
    const Outcome moved = Advance(
        me, [&](Accesses& accesses) { SleepOn(s, accesses, kCoordinator, in_poll); }, &over);
    if (over) me.pc = kEnter;
    return moved;
  }

  Outcome Ring(State& s, uint32_t ringer) const {
    Thread& me = s.ringer[ringer];
    if (me.done == Rings(ringer)) return Outcome::kBlocked;
    bool over = false;
    const Outcome moved = Advance(
        me,
        [&](Accesses& accesses) {
          uint8_t& news = ringer == 0 ? s.result : s.posted;
          accesses.Do([&] { return ++news; });
          const bool work = ringer != 0 && fault_ != BellFault::kQuietWork;
          if (!accesses.cut()) doorbell::Ring(BellOf(s, accesses), work, Waker(s, accesses));
        },
        &over);
    if (over) ++me.done;
    return moved;
  }

  static Outcome Drain(State& s, uint32_t who) {
    if (s.buffered[who] == 0) return Outcome::kBlocked;
    s.announced[who] = static_cast<uint8_t>(s.buffered[who] - 1);
    s.buffered[who] = 0;
    return Outcome::kMoved;
  }

  const bool links_;
  const uint8_t ringers_, work_;
  const BellFault fault_;
};

}  // namespace horoacc::model
