// Locked plans of ranks: all interleavings of two ranks with calls that are carried out at once,
// and engines whose ranks deviate at random.
#include "runtime/engine/locked_plan.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "support/fake_calls.h"
#include "support/ranks.h"
#include "support/seeds.h"

namespace horoacc::testing {
namespace {

constexpr size_t kTensors = 3;
constexpr uint64_t kBucketBytes = 2 * sizeof(int32_t);  // so the tensors are buckets of 2 and of 1
const std::vector<std::string> kNames = {"a", "b", "c"};

Submission Sum() {
  Submission call;
  call.request.collective = Collective::kAllreduce;
  call.request.op = ReduceOp::kSum;
  return call;
}

/// Tensors of a rank that are reduced round after round, each of one number.
class Rank {
 public:
  using Make = std::function<std::unique_ptr<LockedPlan>()>;

  Rank(int rank, int ranks, Make make, int32_t* memory)
      : rank_(rank), ranks_(ranks), make_(std::move(make)), memory_(memory), plan_(make_()) {}

  LockedPlan& plan() { return *plan_; }
  void Submit(size_t index, Dims shape = {1}) {
    memory_[index] = ValueOf(index, ++round_[index], rank_);
    int32_t* const data = &memory_[index];
    const Status taken = plan_->Submit(index, {DType::kInt32, shape}, {data, data});
    if (!taken.ok()) failed_ = taken.error();
  }
  /// False: it has to wait for another rank. Ranks wait in different orders.
  bool WaitAll(int64_t deadline_ns = 0) {
    for (size_t n = 0; n < kTensors; ++n) {
      const size_t index = rank_ % 2 == 0 ? n : kTensors - 1 - n;
      if (!plan_->InFlight(index)) continue;
      const Status outcome = plan_->Wait(index, deadline_ns);
      if (plan_->InFlight(index)) return false;
      if (!outcome.ok()) {
        failed_ = outcome.error();
        continue;
      }
      int32_t sum = 0;
      for (int rank = 0; rank < ranks_; ++rank)
        sum += joined_[rank] ? 0 : ValueOf(index, round_[index], rank);
      CHECK_EQ(memory_[index], sum);
    }
    plan_->EndRound();
    return true;
  }
  void SubmitMissing() {
    const uint64_t round = *std::ranges::max_element(round_);
    for (size_t index = 0; index < kTensors; ++index) {
      if (round_[index] < round) Submit(index);
    }
  }
  void MakeAgain() {
    plan_.reset();
    plan_ = make_();
  }
  void Drop() { plan_.reset(); }
  [[nodiscard]] const std::optional<Error>& failed() const { return failed_; }
  /// From now on zeros come from this rank.
  void Joined(int rank, bool joined) { joined_[rank] = joined; }
  void SkipRounds(uint64_t rounds) {
    for (uint64_t& round : round_) round += rounds;
  }

 private:
  static int32_t ValueOf(size_t index, uint64_t round, int rank) {
    return static_cast<int32_t>(1000 * round + 10 * index + static_cast<uint64_t>(rank) + 1);
  }

  const int rank_;
  const int ranks_;
  const Make make_;
  int32_t* const memory_;
  std::unique_ptr<LockedPlan> plan_;
  std::vector<uint64_t> round_ = std::vector<uint64_t>(kTensors, 0);
  std::vector<bool> joined_ = std::vector<bool>(16, false);
  std::optional<Error> failed_;
};

// --- all interleavings of two ranks ---

/// Two ranks with calls that are carried out at once.
struct Pair {
  Pair() {
    settings.plan_rounds = 1;
    settings.fusion_threshold = kBucketBytes;
    for (int rank = 0; rank < 2; ++rank) {
      calls.push_back(std::make_unique<FakeCalls>(job, rank));
      ranks.push_back(std::make_unique<Rank>(
          rank, 2,
          [this, rank] {
            return std::make_unique<LockedPlan>(
                LockedPlan::Surroundings{*calls[rank], counters[rank], settings, arena}, Sum(),
                kNames);
          },
          memory[rank]));
    }
  }

  FakeCalls::Job job;
  Settings settings;
  alignas(4096) std::byte no_memory[4096];
  const Arena arena{no_memory, sizeof no_memory, -1, 0};
  Counters counters[2];
  int32_t memory[2][kTensors] = {};
  std::vector<std::unique_ptr<FakeCalls>> calls;
  std::vector<std::unique_ptr<Rank>> ranks;
};

/// One step of a rank. False: it waits for the other rank, and is tried again when that has moved.
using Step = std::function<bool(Pair&, Rank&)>;
using Script = std::vector<Step>;

Step Submits(std::vector<size_t> indices, Dims shape = {1}) {
  return [=](Pair&, Rank& rank) {
    for (const size_t index : indices) rank.Submit(index, shape);
    return true;
  };
}

Step Waits() {
  return [](Pair&, Rank& rank) { return rank.WaitAll(); };
}

Script operator+(Script script, const Script& more) {
  script.insert(script.end(), more.begin(), more.end());
  return script;
}

/// A round in which the tensors come one by one; or at once, which has fewer interleavings.
const Script kRound = {Submits({0}), Submits({1}), Submits({2}), Waits()};
const Script kQuick = {Submits({0, 1, 2}), Waits()};

/// Runs the interleavings of two scripts one after the other.
class Interleavings {
 public:
  /// Runs one, on ranks that are in one state at each beginning. Returns false after the last.
  bool Next(Pair& pair, const Script (&scripts)[2]) {
    size_t at[2] = {};
    bool blocked[2] = {};
    size_t depth = 0;
    for (;;) {
      std::vector<int> can;
      for (const int rank : {0, 1}) {
        if (at[rank] < scripts[rank].size() && !blocked[rank]) can.push_back(rank);
      }
      if (can.empty()) break;
      if (depth == choices_.size()) choices_.push_back({0, can.size()});
      const int rank = can[choices_[depth++].first];
      const size_t calls = pair.job.all.size();
      const bool done = scripts[rank][at[rank]](pair, *pair.ranks[rank]);
      if (done) ++at[rank];
      blocked[rank] = !done;
      if (done || pair.job.all.size() != calls) blocked[1 - rank] = false;
    }
    for (const int rank : {0, 1})
      CHECK_EQ(at[rank], scripts[rank].size());  // nobody waits for ever
    choices_.resize(depth);
    while (!choices_.empty() && choices_.back().first + 1 == choices_.back().second)
      choices_.pop_back();
    if (choices_.empty()) return false;
    ++choices_.back().first;
    return true;
  }

 private:
  std::vector<std::pair<size_t, size_t>> choices_;  ///< the one taken, of so many
};

#ifdef __SANITIZE_THREAD__  // has nothing to find in one thread, and takes twenty minutes for all
constexpr uint64_t kMostInterleavings = 1001;
#else
constexpr uint64_t kMostInterleavings = UINT64_MAX;
#endif

/// Checks all interleavings after `rounds` equal rounds, and what holds after each.
uint64_t Explore(int rounds, const Script& zero, const Script& one,
                 const std::function<void(Pair&)>& check) {
  const Script scripts[2] = {zero, one};
  Interleavings interleavings;
  for (uint64_t count = 1;; ++count) {
    Pair pair;
    const auto both_whole = [&] {
      for (const auto& rank : pair.ranks) {
        for (size_t index = 0; index < kTensors; ++index) rank->Submit(index);
      }
      for (const auto& rank : pair.ranks) CHECK(rank->WaitAll());
    };
    for (int round = 0; round < rounds; ++round) both_whole();
    const bool more = interleavings.Next(pair, scripts);
    check(pair);
    // Whatever has happened, the ranks go on together, and lock again.
    if (!pair.job.aborted) {
      const uint64_t locked = pair.counters[0].plan_rounds;
      for (int round = 0; round < 12; ++round) both_whole();
      CHECK(pair.counters[0].plan_rounds > locked);
      CHECK_EQ(pair.counters[0].plan_locks.load(), pair.counters[1].plan_locks.load());
    }
    if (!more || count == kMostInterleavings) return count;
  }
}

uint64_t Unlocks(const Counters& counters) {
  return counters.plan_unlocks_changed + counters.plan_unlocks_wait + counters.plan_unlocks_join +
         counters.plan_unlocks_refused + counters.plan_unlocks_peer + counters.plan_unlocks_end;
}

constexpr int kUntilLocked = 3;  // the third of them carries the proposal

void CheckLocked(Pair& pair) {
  for (const Counters& counters : pair.counters) {
    CHECK_EQ(counters.plan_locks.load(), 1U);
    CHECK_EQ(Unlocks(counters), 0U);
  }
}

void CheckBothLeft(Pair& pair) {
  for (const int rank : {0, 1}) {
    CHECK(!pair.ranks[rank]->failed());
    CHECK_EQ(pair.counters[rank].plan_locks.load(), 1U);
    CHECK_EQ(Unlocks(pair.counters[rank]), 1U);
  }
}

TEST(all_interleavings_of_agreement) {
  const Script script = kQuick + kQuick + kRound + kQuick;
  CHECK(Explore(0, script, script, CheckLocked) > 1000);
}

TEST(all_interleavings_of_locked_rounds) {
  CHECK(Explore(kUntilLocked, kRound + kRound, kRound + kRound, [](Pair& pair) {
          CheckLocked(pair);
          CHECK_EQ(pair.counters[0].plan_rounds.load(), 2U);
        }) > 1000);
}

TEST(all_interleavings_of_another_order) {
  const Script other = {Submits({2}), Submits({1}), Submits({0}), Waits()};
  Explore(kUntilLocked, kRound + kRound, other + other, CheckLocked);
}

// A rank waits, and ends its round, with some of the tensors, at each point; the others follow.
TEST(all_interleavings_of_a_wait_too_early) {
  const std::vector<Script> early = {
      {Submits({0}), Waits(), Submits({1, 2}), Waits()},
      {Submits({0, 1}), Waits(), Submits({2}), Waits()},
      {Submits({2}), Waits(), Submits({0, 1}), Waits()},
      {Submits({1, 2}), Waits(), Submits({0}), Waits()},
  };
  for (const Script& script : early) {
    Explore(kUntilLocked, kRound + kQuick, script + kQuick, CheckBothLeft);
    // Two ranks that are at odds do so in the same way, or each would wait for the other.
    Explore(kUntilLocked, script + kQuick, script + kQuick, CheckBothLeft);
  }
  // In the round in which the ranks agree.
  for (const Script& script : early)
    Explore(kUntilLocked - 1, kRound + kQuick, script + kQuick, [](Pair&) {});
}

TEST(all_interleavings_of_another_shape) {
  const Script other = {Submits({0}), Submits({1}, {1, 1}), Submits({2}), Waits()};
  Explore(kUntilLocked, other + kQuick, other + kQuick, CheckBothLeft);
  // On one rank: an error on both, which names the tensor's own call, and nothing else.
  Explore(kUntilLocked, kRound + kQuick, other + kQuick, [](Pair& pair) {
    for (const auto& rank : pair.ranks) CHECK(rank->failed()->kind == ErrorKind::kMismatch);
    for (const Counters& counters : pair.counters) CHECK_EQ(Unlocks(counters), 1U);
  });
}

TEST(all_interleavings_of_a_refusal) {
  const Script script =
      Script{[](Pair& pair, Rank&) { return pair.calls[1]->refuses_groups = true; }} + kRound +
      Script{[](Pair& pair, Rank&) { return !(pair.calls[1]->refuses_groups = false); }} + kQuick;
  Explore(kUntilLocked, kRound + kQuick, script, CheckBothLeft);
}

TEST(all_interleavings_of_an_end_and_a_new_plan) {
  const Step again = [](Pair&, Rank& rank) {
    rank.MakeAgain();
    return true;
  };
  const auto check = [](Pair& pair) {
    for (const auto& rank : pair.ranks) CHECK(!rank->failed());
    CHECK_EQ(Unlocks(pair.counters[0]), 1U);
  };
  const Script script = Script{again} + kRound + kQuick;
  Explore(kUntilLocked, kRound + kQuick, script, check);
  Explore(kUntilLocked, script, script, check);
  Explore(kUntilLocked + 1, script, kRound + kQuick, check);
}

TEST(all_interleavings_of_news_before_a_join) {
  const Step leaves = [](Pair&, Rank& rank) {
    rank.plan().BeforeJoin(0);
    return true;
  };
  const Script script = {Submits({0}), leaves, Submits({1, 2}), Waits()};
  Explore(kUntilLocked, kRound + kQuick, script + kQuick, CheckBothLeft);
  Explore(kUntilLocked, script + kQuick, script + kQuick, CheckBothLeft);
  // After its last tensor: the others hear of it in the next round.
  const Script late = {Submits({0, 1}), Submits({2}), leaves, Waits()};
  Explore(kUntilLocked, kRound + kRound, late + kRound, CheckBothLeft);
}

// A rank dies at each point: each wait ends, with an error.
TEST(all_interleavings_of_a_death) {
  const Step dies = [](Pair& pair, Rank&) {
    pair.job.Abort();
    return true;
  };
  for (size_t point = 0; point <= kRound.size(); ++point) {
    Script script(kRound.begin(), kRound.begin() + static_cast<ptrdiff_t>(point));
    Explore(kUntilLocked, kRound + kRound, script + Script{dies},
            [](Pair& pair) { CHECK(pair.ranks[0]->failed().has_value()); });
  }
}

// --- engines ---

const Pairs kSettings = {{"plan_rounds", "1"}, {"fusion_threshold", "8"}};

/// Of a rank's engine; the tensors lie in its arena, or not.
Rank MakeRank(Engine& engine, int rank, int ranks, int32_t* memory) {
  return {rank, ranks, [&engine] { return engine.MakePlan(Sum(), kNames); }, memory};
}

constexpr int64_t kLong = 60 * kSecond;

/// Rounds in which ranks do things at other points than others, drawn by a seed that all know.
TEST(engines_that_deviate) {
  std::mt19937_64 shapes(19);
  for (int round = 0; round < 8; ++round) {
    check::ReseedHalfway(shapes, round, 8);
    const uint64_t seed = shapes();
    for (const int ranks : {1, 2, 3, 4}) {
      std::atomic<uint64_t> locked{0};
      RunRanks(ranks, kSettings, [&](Engine& engine, int rank) {
        std::mt19937_64 own(seed + static_cast<uint64_t>(rank) + 1);
        std::mt19937_64 common(seed);
        int32_t plain[kTensors];
        auto* const shared = static_cast<int32_t*>(engine.AllocateShared(sizeof plain));
        {
          Rank tensors = MakeRank(engine, rank, ranks, seed % 2 == 0 ? plain : shared);
          for (int step = 0; step < 60; ++step) {
            const uint64_t what = common() % 12;
            const int who = static_cast<int>(common() % static_cast<uint64_t>(ranks));
            const Dims shape = what == 0 ? Dims{1, 1} : Dims{1};
            if (what == 1 && who == rank) tensors.MakeAgain();
            if (what == 2) tensors.MakeAgain();
            std::vector<size_t> order = {0, 1, 2};
            if (what == 3) std::ranges::shuffle(order, common);
            const bool early = what == 4 && who == rank;
            for (const size_t index : order) {
              tensors.Submit(index, shape);
              if (early && index == order[own() % 2])
                CHECK(tensors.WaitAll(NowNs() + kLong) || true);
              if (own() % 16 == 0) std::this_thread::yield();
            }
            CHECK(tensors.WaitAll(NowNs() + kLong));
            CHECK(!tensors.failed());
            if (what == 5) {
              int32_t last = 0;
              Submission join;
              join.request.collective = Collective::kJoin;
              const Result<uint64_t> handle = engine.Submit(std::move(join));
              CHECK(handle.ok());
              CHECK(WaitAndRelease(engine, handle.value()).ok());
              (void)last;
            }
          }
          locked += Counter(engine, "plan_rounds");
        }
        engine.FreeShared(shared);
      });
      if (ranks > 1) CHECK(locked > 0);
    }
  }
}

}  // namespace
}  // namespace horoacc::testing
