#pragma once
// Mode L (execute/cuda/host/leader_steps.h, whose LeaderWindow this runs): every rank packs, the
// leader's kernel reduces all buffers to all, every rank unpacks. A rank's events say how far its
// GPU has come on its stream, counts in peer infos tell the others. Hosts wait; streams never do.
#include "execute/cuda/host/leader_steps.h"
#include "model/explore.h"
#include "model/replay.h"

namespace horoacc::model {

enum class LeaderFault {
  kNone,
  kPacksEarly,    ///< says that it has packed once that is on the stream
  kOneOfThem,     ///< reduces when one of the others has packed
  kTellsEarly,    ///< says that the result is there once the kernel was launched
  kGoesOnEarly,   ///< unpacks without waiting for the result
  kWaitsForDead,  ///< goes on when the job is over
};

/// Processes: the ranks' hosts, then their streams. Rank 0 leads.
template <uint32_t kRanks>
class LeaderModel {
 public:
  struct Host {
    horoacc::cuda::LeaderWindow steps;
    AccessLog<4 + 2 * kRanks + 2> log;
    uint8_t packs = 1;  ///< before the window's steps
    uint8_t window = 1;
    uint8_t over = 0;
  };
  struct Stream {
    uint8_t enqueued = 0;  ///< of pack, reduce (only the leader's does anything), unpack, pack, ...
    uint8_t done = 0;
    uint8_t at = 0;  ///< buffers that a reduction is through with
  };
  struct State {
    uint8_t buffer[kRanks] = {};    ///< twice the window, + 1 if reduced
    uint8_t recorded[kRanks] = {};  ///< work on the stream when the packed event was recorded
    uint8_t packed[kRanks] = {};    ///< in the peer infos
    uint8_t reduced = 0;
    Host host[kRanks];
    Stream stream[kRanks];
    uint8_t dead = 0;  ///< the last rank is, with its stream
  };

  LeaderModel(uint8_t windows, bool dies, LeaderFault fault)
      : windows_(windows), dies_(dies), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2 * kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (r == kRanks - 1 && s.dead) continue;
      if (s.host[r].over == 0 || s.stream[r].done != s.stream[r].enqueued) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    const uint32_t rank = process % kRanks;
    if (rank == kRanks - 1) {
      if (s.dead) return Outcome::kBlocked;
      if (dies_ && process >= kRanks && s.packed[rank] > s.reduced) {
        s.dead = 1;  // in the middle of a window
        return Outcome::kMoved;
      }
    }
    return process < kRanks ? Go(s, rank) : Run(s, rank, wrong);
  }

 private:
  enum Work : uint8_t { kPacking, kReducing, kUnpacking };

  static bool HasRun(const Stream& stream, uint8_t work) { return stream.done >= work; }

  /// What the steps of a window ask of a rank's host.
  struct Access {
    State& s;
    const uint32_t me;
    const uint8_t window;
    const LeaderFault fault;
    Accesses& accesses;

    [[nodiscard]] uint32_t ranks() const {
      return fault == LeaderFault::kOneOfThem ? kRanks - 1 : kRanks;
    }
    [[nodiscard]] bool leads() const { return me == 0; }
    Status RecordPacked() {
      Set(s.recorded[me], s.stream[me].enqueued);
      return {};
    }
    void TellPacked() { Set(s.packed[me], window); }
    bool HasTold(uint32_t rank) {
      return Ask([&] { return s.packed[rank] >= window; });
    }
    Result<bool> IsPacked() {
      return fault == LeaderFault::kPacksEarly ||
             Ask([&] { return HasRun(s.stream[me], s.recorded[me]); });
    }
    Status ReduceAll() {
      Set(s.stream[me].enqueued, static_cast<uint8_t>(s.stream[me].enqueued + 1));
      return {};
    }
    Result<bool> IsReduced() {
      return fault == LeaderFault::kTellsEarly ||
             Ask([&] { return HasRun(s.stream[me], s.stream[me].enqueued); });
    }
    void TellReduced() { Set(s.reduced, window); }
    bool HasResult() {
      return (fault == LeaderFault::kGoesOnEarly && me != 0) ||
             Ask([&] { return s.reduced >= window; });
    }

   private:
    template <typename Question>
    bool Ask(const Question& question) {
      return accesses.Do([&] { return static_cast<uint8_t>(question() ? 1 : 0); }) != 0;
    }
    void Set(uint8_t& to, uint8_t value) {
      accesses.Do([&] { return to = value; });
    }
  };

  Outcome Go(State& s, uint32_t me) const {
    Host& host = s.host[me];
    if (host.over != 0) return Outcome::kBlocked;
    if (s.dead && fault_ != LeaderFault::kWaitsForDead) {
      host.over = 1;  // the run is dropped: nothing more is enqueued
      return Outcome::kMoved;
    }
    if (host.packs != 0) {
      ++s.stream[me].enqueued;
      host.packs = 0;
      return Outcome::kMoved;
    }
    Result<bool> reduced = false;
    const auto go = [&](auto& steps, Accesses& accesses) {
      Access access{s, me, host.window, fault_, accesses};
      return steps.Go(access);
    };
    if (!Resume(host.steps, host.log, go, &reduced) || !reduced.value()) return Outcome::kMoved;
    s.stream[me].enqueued = static_cast<uint8_t>(3 * host.window);  // unpacks
    host.steps = {};
    host.packs = 1;
    host.over = host.window++ == windows_ ? 1 : 0;
    return Outcome::kMoved;
  }

  Outcome Run(State& s, uint32_t me, const char** wrong) const {
    Stream& stream = s.stream[me];
    if (stream.done == stream.enqueued) return Outcome::kBlocked;
    const auto window = static_cast<uint8_t>(stream.done / 3 + 1);
    const auto packed = static_cast<uint8_t>(2 * window);
    const auto reduced = static_cast<uint8_t>(packed + 1);
    const auto work = static_cast<Work>(stream.done % 3);
    if (work == kReducing && me == 0) {
      uint8_t& there = s.buffer[stream.at % kRanks];
      if (stream.at >= kRanks) {
        there = reduced;
      } else if (there != packed && !s.dead) {
        *wrong = "reduces what is not packed";
      }
      if (++stream.at < 2 * kRanks) return Outcome::kMoved;
      stream.at = 0;
    } else if (work == kPacking) {
      s.buffer[me] = packed;
    } else if (work == kUnpacking && s.buffer[me] != reduced && !s.dead) {
      *wrong = "unpacks what is not reduced";
    }
    ++stream.done;
    return Outcome::kMoved;
  }

  const uint8_t windows_;
  const bool dies_;
  const LeaderFault fault_;
};

}  // namespace horoacc::model
