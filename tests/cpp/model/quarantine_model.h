#pragma once
// A block of one rank, its owner, in a collective in which its peers write it
// (runtime/job/quarantine_rules.h, whose functions this runs). The job is aborted at any moment;
// the owner frees the block, and its program allocates others until its engine ends. A peer writes
// the block in turns of its driver, and once from a thread that submits; it may be killed, or be
// stopped and continued. A peer that writes what has become another tensor is the error.
#include <cstdint>

#include "model/explore.h"
#include "model/replay.h"
#include "runtime/job/quarantine_rules.h"

namespace horoacc::model {

/// What a careless implementation would do.
enum class QuarantineFault {
  kNone,
  kFreesAtOnce,    ///< no quarantine
  kNotesFirst,     ///< a peer says that it has stopped before it drops its runs
  kPassesNoQueue,  ///< or without a look whether a thread of its own submits
  kDeafSubmitter,  ///< a thread that submits does not look for a failure
  kStoppedIsDead,  ///< a peer that is stopped counts as one that has stopped writing
  kOpenEnd,        ///< the engine's end frees what is kept, and then gives out no more
};

template <uint32_t kPeers>
class QuarantineModel {
 public:
  struct Peer {
    uint8_t pc = 0, submitter = 0;  ///< of its two threads
    uint8_t writes = 0;
    uint8_t recorded = 0, lock = 0;  ///< the failure; the queue's mutex
    uint8_t noted = 0, left = 0, alive = 1, stopped = 0;
    AccessLog<4> log;
  };
  struct State {
    uint8_t aborted = 0;
    uint8_t block = 0;  ///< a Block
    uint8_t pc = 0, gives_out = 1, events = 0;
    AccessLog<3 * kPeers + 2> log;
    Peer peer[kPeers];
  };

  /// At most `events` deaths, stops and continuations.
  QuarantineModel(uint8_t events, QuarantineFault fault) : events_(events), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  /// The abort, the owner, its program; of each peer the driver, the thread that submits, what
  /// kills it, and what stops or continues it.
  [[nodiscard]] uint32_t processes() const { return 3 + 4 * kPeers; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Peer& peer : s.peer) {
      if (peer.pc != kGone && peer.stopped == 0) return false;
    }
    return s.pc == kEnded;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process == 0) return Move(s.aborted == 0, [&] { s.aborted = 1; });
    if (process == 1) return Own(s);
    if (process == 2)
      return Move(s.block == kFree && s.gives_out != 0, [&] { s.block = kAnothers; });
    Peer& peer = s.peer[(process - 3) / 4];
    if (peer.pc == kGone) return Outcome::kBlocked;
    switch ((process - 3) % 4) {
      case 0:
        return peer.stopped != 0 ? Outcome::kBlocked : Drive(s, peer, wrong);
      case 1:
        return peer.stopped != 0 ? Outcome::kBlocked : Submit(s, peer, wrong);
      case 2:
        return Move(s.events < events_, [&] {
          ++s.events;
          peer = {};
          peer.pc = kGone;
          peer.alive = 0;
        });
      default:
        return Move(s.events < events_, [&] {
          ++s.events;
          peer.stopped ^= 1;
        });
    }
  }

 private:
  enum Block : uint8_t { kInUse, kKept, kFree, kAnothers };
  enum Owner : uint8_t { kWaits, kFrees, kKeeps, kEnds, kEnded };
  enum Driver : uint8_t { kLooks, kWrites, kRecords, kStops, kLeaves, kExits, kGone };
  enum Submitter : uint8_t { kLocks, kAsks, kReduces, kUnlocks, kDone };

  template <typename Change>
  static Outcome Move(bool can, const Change& change) {
    if (!can) return Outcome::kBlocked;
    change();
    return Outcome::kMoved;
  }
  template <uint32_t kMost>
  static bool Over(const Accesses& accesses, AccessLog<kMost>& log) {
    if (accesses.cut()) return false;
    log = {};
    return true;
  }
  static void Write(const State& s, const char** wrong) {
    if (s.block == kAnothers) *wrong = "writes into another tensor";
  }

  struct Look {
    State& s;
    Accesses& accesses;
    uint32_t peer;
    bool stopped_is_dead;
    [[nodiscard]] bool Byte(uint8_t& byte) const { return ModelAtomic{byte, accesses}.load({}); }
    [[nodiscard]] bool has_noted() const { return Byte(s.peer[peer].noted); }
    [[nodiscard]] bool has_left() const { return Byte(s.peer[peer].left); }
    [[nodiscard]] bool is_dead() const {
      return !Byte(s.peer[peer].alive) || (stopped_is_dead && s.peer[peer].stopped != 0);
    }
  };

  // SharedBlocks: a call that has failed lets the program free its block.
  Outcome Own(State& s) const {
    Accesses accesses(s.log);
    const auto set = [&](uint8_t& byte, uint8_t value) {
      accesses.Do([&] { return byte = value; });
    };
    switch (s.pc) {
      case kWaits:
        return Move(s.aborted != 0, [&] { s.pc = kFrees; });
      case kFrees:
        quarantine::GiveBack(
            [&] {
              return ModelAtomic{s.aborted, accesses}.load({}) != 0 &&
                     fault_ != QuarantineFault::kFreesAtOnce;
            },
            [&] { set(s.block, kFree); }, [&] { set(s.block, kKept); });
        if (Over(accesses, s.log)) s.pc = s.block == kKept ? kKeeps : kEnds;
        return Outcome::kMoved;
      case kKeeps: {  // the coordinator looks now and then, until the engine ends
        bool all = true;
        for (uint32_t peer = 0; peer < kPeers && all; ++peer) {
          all = quarantine::HasStopped(
              Look{s, accesses, peer, fault_ == QuarantineFault::kStoppedIsDead});
        }
        if (all && !accesses.cut()) set(s.block, kFree);
        if (Over(accesses, s.log)) s.pc = kEnds;
        return Outcome::kMoved;
      }
      case kEnds: {
        const auto stop = [&] { set(s.gives_out, 0); };
        const auto free = [&] {
          accesses.Do([&] { return s.block = s.block == kKept ? uint8_t{kFree} : s.block; });
        };
        if (fault_ == QuarantineFault::kOpenEnd) {
          quarantine::End(free, stop);
        } else {
          quarantine::End(stop, free);
        }
        if (Over(accesses, s.log)) s.pc = kEnded;
        return Outcome::kMoved;
      }
      default:
        return Outcome::kBlocked;
    }
  }

  // Driver: turns of a collective, Driver::FailAll, Engine::Shutdown.
  Outcome Drive(State& s, Peer& peer, const char** wrong) const {
    Accesses accesses(peer.log);
    switch (peer.pc) {
      case kLooks:
        return Move(s.aborted != 0 || peer.writes < 2,
                    [&] { peer.pc = s.aborted != 0 ? kRecords : kWrites; });
      case kWrites:
        Write(s, wrong);
        ++peer.writes;
        peer.pc = kLooks;
        return Outcome::kMoved;
      case kRecords:
        peer.recorded = 1;
        peer.pc = kStops;
        return Outcome::kMoved;
      case kStops: {
        // A run that is not dropped writes once more.
        const auto drop = [&] { accesses.Do([&] { return uint8_t{0}; }); };
        const auto pass = [&] {
          if (fault_ == QuarantineFault::kPassesNoQueue) return;
          if (accesses.fresh() && peer.lock != 0) return accesses.Block();
          accesses.Do([&] { return uint8_t{0}; });
        };
        const auto note = [&] { ModelAtomic{peer.noted, accesses}.store(1, {}); };
        if (fault_ == QuarantineFault::kNotesFirst) {
          quarantine::StopTouching(
              note, [&] { accesses.Do([&] { return Write(s, wrong), uint8_t{0}; }); }, pass);
        } else {
          quarantine::StopTouching(drop, pass, note);
        }
        const bool blocked = accesses.blocked();
        if (Over(accesses, peer.log)) peer.pc = kLeaves;
        return blocked ? Outcome::kBlocked : Outcome::kMoved;
      }
      case kLeaves:
        peer.left = 1;
        peer.pc = kExits;
        return Outcome::kMoved;
      default:  // the process ends when both of its threads have
        return Move(peer.submitter == kDone, [&] {
          peer.alive = 0;
          peer.pc = kGone;
        });
    }
  }

  // Submitter::Enqueue, as the last rank to arrive.
  Outcome Submit(State& s, Peer& peer, const char** wrong) const {
    switch (peer.submitter) {
      case kLocks:
        peer.lock = 1;
        break;
      case kAsks:
        if (peer.recorded == 0 || fault_ == QuarantineFault::kDeafSubmitter) break;
        peer.submitter = kUnlocks;
        return Outcome::kMoved;
      case kReduces:
        Write(s, wrong);
        break;
      case kUnlocks:
        peer.lock = 0;
        break;
      default:
        return Outcome::kBlocked;
    }
    ++peer.submitter;
    return Outcome::kMoved;
  }

  const uint8_t events_;
  const QuarantineFault fault_;
};

}  // namespace horoacc::model
