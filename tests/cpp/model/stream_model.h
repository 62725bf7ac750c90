#pragma once
// Mode S (execute/cuda/host/stream_run.h): every rank's stream packs and unpacks, another one
// reduces its shard from all buffers to all, and words of the host's memory say how far they are.
// The steps of a reduction, and the line of windows, are those of the run itself.
#include <array>
#include <utility>

#include "execute/cuda/host/stream_steps.h"
#include "execute/cuda/host/window_line.h"
#include "model/explore.h"

namespace horoacc::model {

enum class StreamFault {
  kNone,
  kReducesEarly,   ///< does not wait until all have packed
  kUnpacksEarly,   ///< does not wait until all have reduced
  kTellsTooEarly,  ///< tells before it has reduced
  kPacksOver,      ///< packs into a slot whose window is not reduced
  kOneWord,        ///< slots have their words in common
  kDeafToAbort,    ///< nobody writes the words that a dead rank owes
};

/// When the last rank dies.
enum class Death { kNever, kAtOnce, kSometime };

/// Processes: the ranks' streams that pack, those that reduce, and their hosts. A host packs,
/// launches and unpacks windows when it may, in any order, or looks after words that will not come.
template <uint32_t kRanks>
class StreamModel {
 public:
  using Line = horoacc::cuda::BasicWindowLine<uint8_t>;
  using Stage = horoacc::cuda::WindowStage;
  static constexpr uint32_t kSlots = Line::kSlots;

  struct Rank {
    Line line;
    uint8_t packed = 0, launched = 0, unpacked = 0;
    // Streams: the first has packings (twice the window) and unpackings (+ 1).
    uint8_t enqueued = 0, done = 0;
    uint8_t work[2 * kSlots] = {};
    uint8_t tells = 0;  ///< the first behind a packing
    uint8_t reduced = 0;
    uint8_t step = 0;    ///< of the next reduction
    uint8_t writes = 0;  ///< it has read all buffers
    uint8_t freed = 0;   ///< its host has written its words
  };
  struct State {
    uint8_t buffer[kRanks][kSlots][kRanks] = {};  ///< by shard: twice the window, + 1 if reduced
    uint8_t packed[kRanks][kRanks][kSlots] = {};  ///< by who waits, then by who is waited for
    uint8_t reduced[kRanks][kRanks][kSlots] = {};
    Rank rank[kRanks];
    uint8_t dead = 0;  ///< the last rank is
  };

  StreamModel(uint8_t windows, Death death, StreamFault fault)
      : windows_(windows), death_(death), fault_(fault), steps_(StepsOf(fault)) {}
  [[nodiscard]] State initial() const {
    State state;
    state.dead = death_ == Death::kAtOnce ? 1 : 0;
    return state;
  }
  [[nodiscard]] uint32_t processes() const { return 6 * kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      const Rank& own = s.rank[r];
      if (r == kRanks - 1 && s.dead) continue;
      if (own.done != own.enqueued || own.reduced != own.launched) return false;
      if (own.unpacked != windows_ && own.freed == 0) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    const uint32_t me = process % kRanks;
    if (me == kRanks - 1 && s.dead) return Outcome::kBlocked;
    switch (process / kRanks) {
      case 0:
        return RunMoves(s, me, wrong);
      case 1:
        return RunReductions(s, me, wrong);
      case 2:
        return Pack(s.rank[me]);
      case 3:
        return Launch(s.rank[me]);
      case 4:
        return Unpack(s.rank[me]);
      default:
        return LookAfter(s, me);
    }
  }

 private:
  using Enqueued = horoacc::cuda::StreamStep;
  static constexpr uint8_t kFar = 100;

  static auto StepsOf(StreamFault fault) {
    auto steps = horoacc::cuda::kStreamSteps;
    if (fault == StreamFault::kTellsTooEarly) std::swap(steps[1], steps[2]);
    return steps;
  }
  [[nodiscard]] uint32_t WordOf(uint8_t window) const {
    return fault_ == StreamFault::kOneWord ? 0 : Line::SlotOf(window);
  }

  // The last rank's host dies; the others' free their streams from it, and from each other.
  Outcome LookAfter(State& s, uint32_t me) const {
    if (me == kRanks - 1) {
      if (death_ == Death::kNever) return Outcome::kBlocked;
      s.dead = 1;
      return Outcome::kMoved;
    }
    Rank& own = s.rank[me];
    if (!s.dead || own.freed > 0 || fault_ == StreamFault::kDeafToAbort) return Outcome::kBlocked;
    own.freed = 1;
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      for (uint32_t slot = 0; slot < kSlots; ++slot)
        s.packed[me][peer][slot] = s.reduced[me][peer][slot] = kFar;
    }
    return Outcome::kMoved;
  }

  // A run that is dropped enqueues no more.
  Outcome Pack(Rank& own) const {
    const auto window = static_cast<uint8_t>(own.packed + 1);
    const bool over = fault_ == StreamFault::kPacksOver && window <= own.unpacked + kSlots + 1;
    if (own.freed > 0 || window > windows_ || !(over || own.line.MayCome(Stage::kPack, window)))
      return Outcome::kBlocked;
    own.work[own.enqueued++ % (2 * kSlots)] = static_cast<uint8_t>(2 * window);
    own.line.Came(Stage::kPack, ++own.packed);
    return Outcome::kMoved;
  }
  Outcome Launch(Rank& own) const {
    const auto window = static_cast<uint8_t>(own.launched + 1);
    if (own.freed > 0 || window > own.packed || !own.line.MayCome(Stage::kLaunch, window))
      return Outcome::kBlocked;
    own.line.Came(Stage::kLaunch, ++own.launched);
    return Outcome::kMoved;
  }
  Outcome Unpack(Rank& own) const {
    const auto window = static_cast<uint8_t>(own.unpacked + 1);
    const bool reduced = own.reduced >= window;  // says the event
    if (own.freed > 0 || !reduced || !own.line.MayCome(Stage::kUnpack, window))
      return Outcome::kBlocked;
    own.work[own.enqueued++ % (2 * kSlots)] = static_cast<uint8_t>(2 * window + 1);
    own.line.Came(Stage::kUnpack, ++own.unpacked);
    return Outcome::kMoved;
  }

  Outcome RunMoves(State& s, uint32_t me, const char** wrong) const {
    Rank& own = s.rank[me];
    if (own.done == own.enqueued) return Outcome::kBlocked;
    const uint8_t work = own.work[own.done % (2 * kSlots)];
    const auto window = static_cast<uint8_t>(work / 2);
    auto& shards = s.buffer[me][Line::SlotOf(window)];
    if (work % 2 == 1) {
      for (const uint8_t shard : shards) {
        if (shard != work && !s.dead) *wrong = "unpacks what is not reduced";
      }
    } else if (own.tells == 0) {
      for (uint8_t& shard : shards) shard = work;
      own.tells = 1;
      return Outcome::kMoved;
    } else {
      for (auto& waits : s.packed) waits[me][WordOf(window)] = window;
      own.tells = 0;
    }
    ++own.done;
    return Outcome::kMoved;
  }

  Outcome RunReductions(State& s, uint32_t me, const char** wrong) const {
    Rank& own = s.rank[me];
    if (own.reduced == own.launched) return Outcome::kBlocked;
    const auto window = static_cast<uint8_t>(own.reduced + 1);
    const Enqueued step = steps_[own.step];
    if (step == Enqueued::kTellReduced) {
      for (auto& waits : s.reduced) waits[me][WordOf(window)] = window;
    } else if (step == Enqueued::kReduceShard) {
      for (auto& buffer : s.buffer) {
        uint8_t& there = buffer[Line::SlotOf(window)][me];
        if (own.writes > 0) {
          there = static_cast<uint8_t>(2 * window + 1);
        } else if (there != 2 * window && !s.dead) {
          *wrong = "reduces what is not packed";
        }
      }
      own.writes = own.writes == 0 ? 1 : 0;
      if (own.writes > 0) return Outcome::kMoved;
    } else {
      const bool packed = step == Enqueued::kAwaitPacked;
      const bool careless =
          fault_ == (packed ? StreamFault::kReducesEarly : StreamFault::kUnpacksEarly);
      for (const auto& words : (packed ? s.packed : s.reduced)[me]) {
        if (words[WordOf(window)] < window && !careless) return Outcome::kBlocked;
      }
    }
    if (++own.step == steps_.size()) {
      own.step = 0;
      ++own.reduced;
    }
    return Outcome::kMoved;
  }

  const uint8_t windows_;
  const Death death_;
  const StreamFault fault_;
  const std::array<Enqueued, horoacc::cuda::kStreamSteps.size()> steps_;
};

}  // namespace horoacc::model
