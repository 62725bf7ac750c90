#pragma once
// Mode L (execute/cuda/host/leader_steps.h and window_line.h, whose code this runs): every rank
// packs, the leader's kernel reduces all buffers to all, every rank unpacks, while other windows
// are in other stages. A rank's events say how far its GPU has come on its streams, counts in peer
// infos tell the others. Hosts wait; streams never do.
#include <utility>

#include "execute/cuda/host/leader_steps.h"
#include "execute/cuda/host/window_line.h"
#include "model/explore.h"
#include "model/replay.h"

namespace horoacc::model {

enum class LeaderFault {
  kNone,
  kPacksEarly,     ///< says that it has packed once that is on the stream
  kOneOfThem,      ///< reduces when one of the others has packed
  kTellsEarly,     ///< says that the result is there once the kernel was launched
  kGoesOnEarly,    ///< unpacks without waiting for the result
  kPacksOver,      ///< packs into a slot whose window is not unpacked
  kLaunchesLater,  ///< the second of two windows first
  kWaitsForDead,   ///< goes on when the job is over
};

/// The windows of a bucket, or of many, come to their stages alike. Processes: the ranks' hosts,
/// their streams, and the leader's stream for reductions. Rank 0 leads.
template <uint32_t kRanks>
class LeaderModel {
 public:
  using Line = horoacc::cuda::BasicWindowLine<uint8_t>;
  using Stage = horoacc::cuda::WindowStage;
  static constexpr uint32_t kSlots = Line::kSlots;

  struct Host {
    Line line;
    horoacc::cuda::LeaderWindow steps;  ///< of the next window to be launched
    AccessLog<4 + 2 * kRanks + 2> log;
    Stage stage = Stage::kPack;  ///< what it turns to
    uint8_t packed = 0, launched = 0, unpacked = 0;
    uint8_t over = 0;
  };
  struct Stream {
    uint8_t enqueued = 0, done = 0;
    uint8_t work[2 * kSlots] = {};  ///< twice the window, + 1 for its unpacking
  };
  struct State {
    uint8_t buffer[kRanks][kSlots] = {};    ///< twice the window, + 1 if reduced
    uint8_t recorded[kRanks][kSlots] = {};  ///< work on the stream when it was packed
    uint8_t packed[kRanks] = {};            ///< in the peer infos
    uint8_t reduced = 0;
    Host host[kRanks];
    Stream stream[kRanks];
    uint8_t launched = 0, ended = 0;  ///< reductions on the leader's other stream
    uint8_t at = 0;                   ///< buffers that one is through with
    uint8_t dead = 0;                 ///< the last rank is, with its streams
  };

  LeaderModel(uint8_t windows, bool dies, LeaderFault fault)
      : windows_(windows), dies_(dies), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2 * kRanks + 1; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (r == kRanks - 1 && s.dead) continue;
      if (s.host[r].over == 0 || s.stream[r].done != s.stream[r].enqueued) return false;
    }
    return s.ended == s.launched;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process == 2 * kRanks) return Reduce(s, wrong);
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
  /// What LeaderWindow asks of a rank's host.
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
    void TellPacked() { Set(s.packed[me], window); }
    bool HasTold(uint32_t rank) {
      return Ask([&] { return s.packed[rank] >= window; });
    }
    Result<bool> IsPacked() {
      return fault == LeaderFault::kPacksEarly ||
             Ask([&] { return s.stream[me].done >= s.recorded[me][Line::SlotOf(window)]; });
    }
    Status ReduceAll() {
      Set(s.launched, static_cast<uint8_t>(s.launched + 1));
      return {};
    }
    Result<bool> IsReduced() {
      return fault == LeaderFault::kTellsEarly || Ask([&] { return s.ended >= window; });
    }
    void TellReduced() { Set(s.reduced, window); }
    bool HasResult() {
      return fault == LeaderFault::kGoesOnEarly || Ask([&] { return s.reduced >= window; });
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

  static void Put(Stream& stream, uint8_t work) {
    stream.work[stream.enqueued++ % (2 * kSlots)] = work;
  }

  // As ModeRun's Go, a step at a time; stages for which there is no window take none.
  Outcome Go(State& s, uint32_t me) const {
    Host& host = s.host[me];
    if (host.over != 0) return Outcome::kBlocked;
    if ((s.dead && fault_ != LeaderFault::kWaitsForDead) || host.unpacked == windows_) {
      host.over = 1;  // the run is dropped, or complete: nothing more is enqueued
      return Outcome::kMoved;
    }
    if (host.stage == Stage::kPack) {
      host.stage = Stage::kLaunch;
      if (Pack(s, me)) return Outcome::kMoved;
    }
    Result<bool> came = false;
    if (host.stage == Stage::kLaunch) {
      const bool later = fault_ == LeaderFault::kLaunchesLater;
      const int next = host.launched + (!later ? 1 : host.launched % 2 == 0 ? 2 : 0);
      const auto window = static_cast<uint8_t>(next);
      if (window <= host.packed && (later || host.line.MayCome(Stage::kLaunch, window))) {
        const auto launch = [&](auto& steps, Accesses& accesses) {
          Access access{s, me, window, fault_, accesses};
          return steps.Launch(access);
        };
        if (!Resume(host.steps, host.log, launch, &came)) return Outcome::kMoved;
        host.stage = Stage::kUnpack;
        if (!came.value()) return Outcome::kMoved;
        host.steps = {};
        host.line.Came(Stage::kLaunch, ++host.launched);
        return Outcome::kMoved;
      }
      host.stage = Stage::kUnpack;
    }
    const auto window = static_cast<uint8_t>(host.unpacked + 1);
    if (host.launched >= window && host.line.MayCome(Stage::kUnpack, window)) {
      const auto ask = [&](auto&, Accesses& accesses) {
        Access access{s, me, window, fault_, accesses};
        return horoacc::cuda::LeaderWindow::IsReduced(access);
      };
      uint8_t none = 0;
      if (!Resume(none, host.log, ask, &came)) return Outcome::kMoved;
      if (came.value()) {
        Put(s.stream[me], static_cast<uint8_t>(2 * window + 1));
        host.line.Came(Stage::kUnpack, ++host.unpacked);
      }
    }
    host.stage = Stage::kPack;
    return Outcome::kMoved;
  }

  bool Pack(State& s, uint32_t me) const {
    Host& host = s.host[me];
    const auto window = static_cast<uint8_t>(host.packed + 1);
    const bool over = fault_ == LeaderFault::kPacksOver && window <= host.unpacked + kSlots + 1;
    if (window > windows_ || !(over || host.line.MayCome(Stage::kPack, window))) return false;
    Put(s.stream[me], static_cast<uint8_t>(2 * window));
    s.recorded[me][Line::SlotOf(window)] = s.stream[me].enqueued;
    host.line.Came(Stage::kPack, ++host.packed);
    return true;
  }

  Outcome Run(State& s, uint32_t me, const char** wrong) const {
    Stream& stream = s.stream[me];
    if (stream.done == stream.enqueued) return Outcome::kBlocked;
    const uint8_t work = stream.work[stream.done % (2 * kSlots)];
    uint8_t& there = s.buffer[me][Line::SlotOf(work / 2)];
    if (work % 2 == 0) {
      there = work;
    } else if (there != work && !s.dead) {
      *wrong = "unpacks what is not reduced";
    }
    ++stream.done;
    return Outcome::kMoved;
  }

  Outcome Reduce(State& s, const char** wrong) const {
    if (s.ended == s.launched) return Outcome::kBlocked;
    const auto window = static_cast<uint8_t>(s.ended + 1);
    uint8_t& there = s.buffer[s.at % kRanks][Line::SlotOf(window)];
    if (s.at >= kRanks) {
      there = static_cast<uint8_t>(2 * window + 1);
    } else if (there != 2 * window && !s.dead) {
      *wrong = "reduces what is not packed";
    }
    if (++s.at == 2 * kRanks) {
      s.at = 0;
      ++s.ended;
    }
    return Outcome::kMoved;
  }

  const uint8_t windows_;
  const bool dies_;
  const LeaderFault fault_;
};

}  // namespace horoacc::model
