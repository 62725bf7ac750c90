#pragma once
// The lock of a set (negotiate/control_segment/segment_lock_rules.h, whose functions this runs).
// Each rank takes it a few times, changes in two steps what it protects, and leaves. At any moment
// a rank may be killed, be stopped (and perhaps be continued), or throw in the middle of a change.
#include <array>

#include "model/explore.h"
#include "model/replay.h"
#include "negotiate/control_segment/segment_lock_rules.h"

namespace horoacc::model {

/// What a careless implementation would do.
enum class LockFault {
  kNone,
  kDeafToDeath,    ///< a rank that waits does not look whether the owner lives
  kDeafToSilence,  ///< nor whether it is stopped
  kOneLook,        ///< believes that an owner that is dead now died as the owner
  kGivesBack,      ///< an exception aborts, and gives the lock back
};

template <uint32_t kRanks>
class LockModel {
 public:
  struct Rank {
    uint8_t pc = 0;
    uint8_t turns = 0;
    uint8_t alive = 1, killed = 0, stopped = 0;
    AccessLog<6> log;
  };
  struct State {
    uint8_t owner = 0, aborted = 0;
    uint8_t half = 0;    ///< what the lock protects is half changed
    uint8_t events = 0;  ///< deaths, stops, continuations and exceptions so far
    Rank rank[kRanks];
  };

  /// At most `events` deaths, stops, continuations and exceptions.
  LockModel(uint8_t turns, uint8_t events, LockFault fault)
      : turns_(turns), events_(events), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  /// The ranks; and for each, what kills it, stops or continues it, and lets it throw.
  [[nodiscard]] uint32_t processes() const { return 4 * kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Rank& rank : s.rank) {
      if (rank.pc != kGone && rank.killed == 0 && rank.stopped == 0) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    Rank& rank = s.rank[process % kRanks];
    if (rank.killed != 0 || rank.pc == kGone) return Outcome::kBlocked;
    if (process < kRanks) return rank.stopped != 0 ? Outcome::kBlocked : Run(s, process, wrong);
    const Event event = static_cast<Event>(process / kRanks);
    const bool throws = event == kThrow;
    if (s.events == events_ || (throws && (rank.pc != kFinish || rank.stopped != 0)))
      return Outcome::kBlocked;
    ++s.events;
    if (throws) rank.pc = kThrown;
    if (event == kStopOrContinue) rank.stopped ^= 1;
    if (event == kKill) {
      rank.alive = rank.stopped = 0;
      rank.killed = 1;
    }
    return Outcome::kMoved;
  }

 private:
  enum Event : uint8_t { kKill = 1, kStopOrContinue, kThrow };
  enum Place : uint8_t { kTry, kWait, kBegin, kFinish, kGiveBack, kThrown, kLeave, kGone };

  /// The owner's word, of which the second look sees what the first saw.
  struct OneLook : ModelAtomic {
    mutable int first = -1;
    uint32_t load(std::memory_order order) const {
      return first < 0 ? first = ModelAtomic::load(order) : first;
    }
  };

  Outcome Run(State& s, uint32_t me, const char** wrong) const {
    Rank& rank = s.rank[me];
    using segment_lock::Turn;
    Accesses accesses(rank.log);
    const ModelAtomic owner{s.owner, accesses};
    const auto aborted = [&] { return ModelAtomic{s.aborted, accesses}.load({}) != 0; };
    const auto abort = [&] { ModelAtomic{s.aborted, accesses}.store(1, {}); };
    // What the call returned, if it has.
    const auto over = [&] {
      if (accesses.cut()) return false;
      rank.log = {};
      return true;
    };
    switch (rank.pc) {
      case kTry: {
        const Turn turn = segment_lock::Try(owner, me);
        if (over()) rank.pc = Next(turn);
        break;
      }
      case kWait: {
        accesses.Do([&] {  // LockWatch::look
          for (const Rank& other : s.rank) {
            if (other.stopped != 0 && fault_ != LockFault::kDeafToSilence) s.aborted = 1;
          }
          return uint8_t{0};
        });
        const auto alive = [&](uint32_t other) {
          return fault_ == LockFault::kDeafToDeath ||
                 ModelAtomic{s.rank[other].alive, accesses}.load({}) != 0 || accesses.cut();
        };
        uint32_t dead = kRanks;
        const Turn turn = fault_ == LockFault::kOneLook
                              ? segment_lock::LookAround(OneLook{owner}, aborted, alive, &dead)
                              : segment_lock::LookAround(owner, aborted, alive, &dead);
        if (!over()) break;
        rank.pc = turn == Turn::kWait ? kTry : Next(turn);
        if (turn != Turn::kOwnerDied) break;
        if (s.rank[dead].killed == 0) *wrong = "blames a rank that has left in order";
        s.aborted = 1;
        break;
      }
      case kBegin:
        if (s.half != 0) *wrong = "goes on with what is half changed";
        s.half = 1;
        rank.pc = kFinish;
        break;
      case kFinish:
        s.half = 0;
        rank.pc = kGiveBack;
        break;
      case kGiveBack:
        segment_lock::GiveBack(owner, false, abort);
        if (over()) rank.pc = ++rank.turns == turns_ ? kLeave : kTry;
        break;
      case kThrown:
        segment_lock::GiveBack(owner, true, abort);
        if (fault_ == LockFault::kGivesBack) segment_lock::GiveBack(owner, false, abort);
        if (over()) rank.pc = kLeave;
        break;
      default:
        rank.alive = 0;
        rank.pc = kGone;
    }
    return Outcome::kMoved;
  }
  static Place Next(segment_lock::Turn turn) {
    using segment_lock::Turn;
    return turn == Turn::kTaken ? kBegin : turn == Turn::kWait ? kWait : kLeave;
  }

  const uint8_t turns_, events_;
  const LockFault fault_;
};

}  // namespace horoacc::model
