#pragma once
// Low-latency calls of persistent kernels (execute/cuda/persistent/low_latency.h, whose LowLatency
// this runs, with the programs of kernel_compiler.h): words that carry their flag, in two sets used
// in turn, and no barrier between calls. Every store reaches memory on its own, in any order. A
// rank may die at any time; then the host says so by the abort word.
#include "execute/cuda/persistent/kernel_compiler.h"
#include "execute/cuda/persistent/low_latency.h"
#include "model/explore.h"
#include "model/replay.h"

namespace horoacc::model {

enum class WordFault {
  kNone,
  kTornWord,     ///< data and flag are two stores
  kOneSet,       ///< every call uses the same words
  kSameFlag,     ///< the flag does not tell calls apart
  kDeafToAbort,  ///< waits without looking at the abort word
};

/// A call: everything to everybody (one-shot), or parts to owners and results to everybody
/// (two-shot), where a small message has fewer owners than ranks: one for each element.
struct WordShape {
  bool two_shot = false;
  uint8_t elements = 1;
  uint8_t calls = 3;
  bool dies = false;
};

template <uint32_t kRanks>
class LowLatencyModel {
 public:
  /// In a rank's workspace: two sets of parts, and of results, from every rank.
  static constexpr uint32_t kWords = 4 * kRanks;
  struct Word {
    uint8_t data = 0, flag = 0;
  };
  struct Rank {
    uint8_t call = 0;
    uint8_t left = 0;  ///< 1: it has given up; 2: it is dead
    AccessLog<4 * kRanks> log;
  };
  struct State {
    Word word[kRanks][kWords] = {};
    Word pending[kRanks][kWords] = {};  ///< stores on their way; every word has one writer
    uint8_t abort = 0;
    Rank rank[kRanks];
  };

  LowLatencyModel(WordShape shape, WordFault fault)
      : shape_(shape),
        fault_(fault),
        image_(cuda::CompileFixed(
                   shape.two_shot ? cuda::KernelKind::kTwoShot : cuda::KernelKind::kOneShot, kRanks,
                   {.type = DType::kInt32, .count = shape.elements})
                   .value()) {}
  [[nodiscard]] State initial() const { return {}; }
  /// The ranks, the stores of each (data and flag may part), death, and the host.
  [[nodiscard]] uint32_t processes() const { return kRanks + kStores + 2; }
  [[nodiscard]] bool Done(const State& s) const {
    for (const Rank& rank : s.rank) {
      if (rank.left == 0 && rank.call < shape_.calls) return false;
    }
    return true;
  }

  Outcome Step(State& s, uint32_t process, const char** wrong) const {
    if (process < kRanks) return Run(s, process, wrong);
    process -= kRanks;
    if (process < kStores) return Drain(s, process);
    return process == kStores ? Die(s) : Abort(s);
  }

 private:
  static constexpr uint32_t kLast = kRanks - 1;
  static constexpr uint32_t kStores = 2 * kRanks * kWords;
  using Workspaces = uint64_t[kRanks][kWords];

  /// A block of one thread; see kernel_wait.h. Its addresses stand for words of the state.
  struct Cta {
    State& s;
    const LowLatencyModel& model;
    const uint32_t me;
    const uint64_t* const first;
    Accesses& accesses;
    bool gave_up = false;

    [[nodiscard]] uint32_t rank() const { return me; }
    [[nodiscard]] uint32_t channel() const { return 0; }
    template <typename Body>
    void Each(const Body& body) const {
      body(cuda::Grid{});
    }
    void StoreWord(uint64_t* to, uint64_t value) {
      Word& pending = At(s.pending, to);
      if (accesses.fresh() && (pending.data != 0 || pending.flag != 0))
        return accesses.Block();  // stores to one word stay in order
      const uint8_t flag = model.FlagOf(s.rank[me].call);
      accesses.Do([&] {
        pending = {static_cast<uint8_t>(value), flag};
        return uint8_t{0};
      });
    }
    uint64_t LoadWord(const uint64_t* from) {
      const Word& word = At(s.word, from);
      if (accesses.fresh() && word.flag != model.FlagOf(s.rank[me].call)) return 0;
      const uint8_t data = accesses.Do([&] { return word.data; });
      return accesses.cut() ? 0 : (s.rank[me].call + uint64_t{1}) << 32 | data;
    }
    bool GoOn(uint32_t) {
      if (accesses.cut()) return false;
      gave_up = s.abort != 0 && model.fault_ != WordFault::kDeafToAbort;
      if (!gave_up) accesses.Block();
      return false;
    }
    void Report(uint64_t) const {}

   private:
    Word& At(Word (&words)[kRanks][kWords], const uint64_t* address) const {
      const auto at = static_cast<uint32_t>(address - first);
      const uint32_t set = model.image_words() / 2;
      const uint32_t word = at % kWords;
      return words[at / kWords][model.fault_ == WordFault::kOneSet ? word % set : word];
    }
  };

  [[nodiscard]] const cuda::KernelHeader& header() const { return cuda::HeaderOf(image_); }
  /// Of a rank's workspace, in both sets; the program rounds its bytes up.
  [[nodiscard]] uint32_t image_words() const { return (shape_.two_shot ? 4 : 2) * kRanks; }
  [[nodiscard]] uint8_t FlagOf(uint8_t call) const {
    return fault_ == WordFault::kSameFlag ? 1 : static_cast<uint8_t>(call + 1);
  }
  static int32_t InputOf(uint32_t rank, uint32_t call, uint32_t element) {
    return static_cast<int32_t>(1 + rank + 8 * call + 2 * element);
  }

  Outcome Run(State& s, uint32_t r, const char** wrong) const {
    Rank& me = s.rank[r];
    if (me.left != 0 || me.call == shape_.calls) return Outcome::kBlocked;
    Workspaces workspaces;
    int32_t input[kRanks] = {};
    int32_t output[kRanks] = {};
    cuda::KernelCall call;
    call.call = me.call;
    for (uint32_t k = 0; k < kRanks; ++k)
      call.workspace[k] = reinterpret_cast<char*>(&workspaces[k][0]);
    for (uint32_t e = 0; e < shape_.elements; ++e) input[e] = InputOf(r, me.call, e);
    call.input[r] = reinterpret_cast<const char*>(input);
    call.output[r] = reinterpret_cast<char*>(output);
    Accesses accesses(me.log);
    Cta cta{s, *this, r, &workspaces[0][0], accesses};
    using Sum = cuda::Fixed<horoacc::Sum>;
    const cuda::KernelProgram program(header(), nullptr);
    const bool ok = cuda::LowLatency<Number<int32_t>, Sum, Cta>(cta, program, call, Sum{}).Run();
    if (cta.gave_up) {
      me.left = 1;
      return Outcome::kMoved;
    }
    if (accesses.blocked()) return Outcome::kBlocked;
    if (accesses.cut()) return Outcome::kMoved;
    for (uint32_t e = 0; e < shape_.elements; ++e) {
      int32_t sum = 0;
      for (uint32_t k = 0; k < kRanks; ++k) sum += InputOf(k, me.call, e);
      if (!ok || output[e] != sum) *wrong = "reads another message";
    }
    me.log = {};
    ++me.call;
    return Outcome::kMoved;
  }

  Outcome Drain(State& s, uint32_t number) const {
    const bool flag_only = number % 2 == 1;
    const uint32_t to = number / 2 / kWords;
    Word& pending = s.pending[to][number / 2 % kWords];
    Word& word = s.word[to][number / 2 % kWords];
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
  const cuda::KernelImage image_;
};

}  // namespace horoacc::model
