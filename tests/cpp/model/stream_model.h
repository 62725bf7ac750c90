#pragma once
// Mode S (execute/cuda/host/stream_run.h): every rank's stream packs, reduces its shard from all
// buffers to all, and unpacks, window after window; words of the host's memory say how far it is.
// The steps between packing and unpacking are those of the run itself.
#include <array>
#include <utility>

#include "execute/cuda/host/stream_steps.h"
#include "model/explore.h"

namespace horoacc::model {

enum class StreamFault {
  kNone,
  kReducesEarly,   ///< does not wait until all have packed
  kUnpacksEarly,   ///< does not wait until all have reduced
  kWaitsFirst,     ///< waits before it tells the others
  kTellsTooEarly,  ///< tells before it has reduced
  kDeafToAbort,    ///< nobody writes the words that a dead rank owes
};

/// Processes: the ranks' streams, then their hosts, which only look after words that will not come.
template <uint32_t kRanks>
class StreamModel {
 public:
  struct Stream {
    uint8_t step = 0;  ///< 0: packs; then the run's steps; then unpacks
    uint8_t at = 0;    ///< shards, or peers, that are through with it
    uint8_t window = 1;
  };
  struct State {
    uint8_t buffer[kRanks][kRanks] = {};  ///< of a rank, by shard: twice the window, + 1 if reduced
    uint8_t packed[kRanks][kRanks] = {};  ///< by who waits, then by who is waited for
    uint8_t reduced[kRanks][kRanks] = {};
    Stream stream[kRanks];
    uint8_t freed[kRanks] = {};  ///< peers for whose words its host has written
    uint8_t dead = 0;            ///< the last rank is
  };

  StreamModel(uint8_t windows, bool dies, StreamFault fault)
      : windows_(windows), dies_(dies), fault_(fault), steps_(StepsOf(fault)) {}
  [[nodiscard]] State initial() const { return {}; }
  [[nodiscard]] uint32_t processes() const { return 2 * kRanks; }
  [[nodiscard]] bool Done(const State& s) const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      if (s.stream[r].window <= windows_ && !(r == kRanks - 1 && s.dead)) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    return process < kRanks ? Run(s, process, wrong) : LookAfter(s, process - kRanks);
  }

 private:
  using Enqueued = horoacc::cuda::StreamStep;
  static constexpr uint8_t kFar = 100;

  static auto StepsOf(StreamFault fault) {
    auto steps = horoacc::cuda::kStreamSteps;
    if (fault == StreamFault::kWaitsFirst) std::swap(steps[0], steps[1]);
    if (fault == StreamFault::kTellsTooEarly) std::swap(steps[2], steps[3]);
    return steps;
  }

  // The last rank's host dies; the others' free their streams from it, and from each other.
  Outcome LookAfter(State& s, uint32_t me) const {
    if (me == kRanks - 1) {
      if (!dies_ || s.dead) return Outcome::kBlocked;
      s.dead = 1;
      return Outcome::kMoved;
    }
    if (!s.dead || s.freed[me] == kRanks || fault_ == StreamFault::kDeafToAbort)
      return Outcome::kBlocked;
    const uint8_t peer = s.freed[me]++;
    s.packed[me][peer] = s.reduced[me][peer] = kFar;
    return Outcome::kMoved;
  }

  Outcome Run(State& s, uint32_t me, const char** wrong) const {
    Stream& own = s.stream[me];
    if (own.window > windows_ || (me == kRanks - 1 && s.dead)) return Outcome::kBlocked;
    const auto packed = static_cast<uint8_t>(2 * own.window);
    const auto reduced = static_cast<uint8_t>(packed + 1);
    if (own.step == 0) {
      s.buffer[me][own.at] = packed;
      return Next(own, kRanks);
    }
    if (own.step > steps_.size()) {
      if (s.buffer[me][own.at] != reduced && !s.dead) *wrong = "unpacks what is not reduced";
      if (Next(own, kRanks); own.step > steps_.size() + 1) {
        own.step = 0;
        ++own.window;
        // A run that is dropped enqueues no more.
        if (s.freed[me] > 0) own.window = static_cast<uint8_t>(windows_ + 1);
      }
      return Outcome::kMoved;
    }
    switch (steps_[own.step - 1]) {
      case Enqueued::kTellPacked:
        s.packed[own.at][me] = own.window;
        return Next(own, kRanks);
      case Enqueued::kTellReduced:
        s.reduced[own.at][me] = own.window;
        return Next(own, kRanks);
      case Enqueued::kAwaitPacked:
        return Await(s.packed[me][own.at], own, fault_ == StreamFault::kReducesEarly);
      case Enqueued::kAwaitReduced:
        return Await(s.reduced[me][own.at], own, fault_ == StreamFault::kUnpacksEarly);
      default: {
        uint8_t& there = s.buffer[own.at % kRanks][me];
        if (own.at >= kRanks) {
          there = reduced;
        } else if (there != packed && !s.dead) {
          *wrong = "reduces what is not packed";
        }
        return Next(own, 2 * kRanks);
      }
    }
  }

  static Outcome Next(Stream& own, uint32_t parts) {
    if (++own.at == parts) {
      own.at = 0;
      ++own.step;
    }
    return Outcome::kMoved;
  }
  static Outcome Await(uint8_t word, Stream& own, bool careless) {
    return word < own.window && !careless ? Outcome::kBlocked : Next(own, kRanks);
  }

  const uint8_t windows_;
  const bool dies_;
  const StreamFault fault_;
  const std::array<Enqueued, horoacc::cuda::kStreamSteps.size()> steps_;
};

}  // namespace horoacc::model
