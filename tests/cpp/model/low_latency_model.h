#pragma once
// Low-latency calls of persistent kernels (execute/cuda/persistent/low_latency.h): words that carry
// their flag, in two sets used in turn, and no barrier between calls. Every store reaches memory on
// its own, in any order. A rank may die at any time; then the host says so by the abort word.
#include "model/explore.h"

namespace horoacc::model {

enum class WordFault {
  kNone,
  kTornWord,     ///< data and flag are two stores
  kOneSet,       ///< every call uses the same words
  kSameFlag,     ///< the flag does not tell calls apart
  kDeafToAbort,  ///< waits without looking at the abort word
};

/// How a call goes: everything to everybody (one-shot), or parts to owners and results to everybody
/// (two-shot), where a small message has fewer owners than ranks.
struct WordShape {
  bool two_shot = false;
  uint8_t owners = 1;
  uint8_t calls = 3;
  bool dies = false;
};

template <uint32_t kRanks>
class LowLatencyModel {
 public:
  struct Word {
    uint8_t data = 0, flag = 0;
  };
  struct Rank {
    uint8_t call = 0;
    uint8_t op = 0;  ///< of this call
    uint8_t left = 0;
  };
  /// Words by set, kind (parts, results), receiver and sender.
  struct State {
    Word word[2][2][kRanks][kRanks] = {};
    Word pending[2][2][kRanks][kRanks] = {};
    uint8_t abort = 0;
    Rank rank[kRanks];
  };

  LowLatencyModel(WordShape shape, WordFault fault) : shape_(shape), fault_(fault) {}
  [[nodiscard]] State initial() const { return {}; }
  /// The ranks, the stores of each (data and flag may part), death, and the host.
  [[nodiscard]] uint32_t processes() const { return kRanks + 8 * kRanks * kRanks + 2; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Rank& rank : s.rank) {
      if (rank.left == 0 && rank.call < shape_.calls) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process < kRanks) return Run(s, process, wrong);
    process -= kRanks;
    if (process < 8 * kRanks * kRanks) return Drain(s, process);
    return process == 8 * kRanks * kRanks ? Die(s) : Abort(s);
  }

 private:
  static constexpr uint32_t kLast = kRanks - 1;

  // A call's accesses of a rank, in order: parts out, parts in and results out, results in; each to
  // or from every peer. `op` counts through kind and peer.
  enum Phase : uint8_t { kSendParts, kTakeParts, kSendResults, kTakeResults, kOver };

  [[nodiscard]] bool Owns(uint32_t rank) const { return !shape_.two_shot || rank < shape_.owners; }

  Outcome Run(State& s, uint32_t r, const char** wrong) const {
    Rank& me = s.rank[r];
    if (me.left != 0 || me.call == shape_.calls) return Outcome::kBlocked;
    // What this rank has no part in is passed over.
    uint32_t phase = me.op / kRanks;
    uint32_t peer = me.op % kRanks;
    while (phase < kOver && (peer == r || !TakesPart(phase, r, peer))) {
      ++me.op;
      phase = me.op / kRanks;
      peer = me.op % kRanks;
    }
    if (phase == kOver) {
      me.op = 0;
      ++me.call;
      return Outcome::kMoved;
    }
    const uint32_t set = fault_ == WordFault::kOneSet ? 0 : me.call % 2;
    const uint32_t kind = phase / 2;
    if (phase % 2 == 0) {
      Word& pending = s.pending[set][kind][peer][r];
      if (pending.data != 0 || pending.flag != 0) return Outcome::kBlocked;  // in order, here
      pending = {static_cast<uint8_t>(me.call + 1), FlagOf(me.call)};
    } else {
      const Word& word = s.word[set][kind][r][peer];
      if (word.flag != FlagOf(me.call)) return Wait(s, me);
      if (word.data != me.call + 1) *wrong = "reads another message";
    }
    ++me.op;
    return Outcome::kMoved;
  }

  [[nodiscard]] bool TakesPart(uint32_t phase, uint32_t r, uint32_t peer) const {
    switch (phase) {
      case kSendParts:
        return Owns(peer);
      case kTakeParts:
        return Owns(r);
      case kSendResults:
        return shape_.two_shot && Owns(r);
      default:
        return shape_.two_shot && Owns(peer);
    }
  }
  [[nodiscard]] uint8_t FlagOf(uint8_t call) const {
    return fault_ == WordFault::kSameFlag ? 1 : static_cast<uint8_t>(call + 1);
  }

  Outcome Wait(const State& s, Rank& me) const {
    if (s.abort == 0 || fault_ == WordFault::kDeafToAbort) return Outcome::kBlocked;
    me.left = 1;
    return Outcome::kMoved;
  }

  Outcome Drain(State& s, uint32_t number) const {
    const bool flag_only = number % 2 == 1;
    number /= 2;
    const uint32_t from = number % kRanks;
    const uint32_t to = number / kRanks % kRanks;
    const uint32_t place = number / kRanks / kRanks;
    Word& pending = s.pending[place / 2][place % 2][to][from];
    Word& word = s.word[place / 2][place % 2][to][from];
    if (fault_ == WordFault::kTornWord) {
      uint8_t& part = flag_only ? pending.flag : pending.data;
      if (part == 0) return Outcome::kBlocked;
      (flag_only ? word.flag : word.data) = part;
      part = 0;
      return Outcome::kMoved;
    }
    if (flag_only || pending.flag == 0) return Outcome::kBlocked;
    word = pending;
    pending = {};
    return Outcome::kMoved;
  }

  Outcome Die(State& s) const {
    Rank& last = s.rank[kLast];
    if (!shape_.dies || last.left != 0 || last.call == shape_.calls) return Outcome::kBlocked;
    last.left = 2;
    return Outcome::kMoved;
  }
  Outcome Abort(State& s) const {
    if (s.abort != 0 || s.rank[kLast].left != 2) return Outcome::kBlocked;
    s.abort = 1;
    return Outcome::kMoved;
  }

  const WordShape shape_;
  const WordFault fault_;
};

}  // namespace horoacc::model
