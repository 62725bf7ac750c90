// Locked plans of two ranks with calls that are carried out at once: all interleavings.
#include <algorithm>
#include <functional>
#include <memory>

#include "support/fake_calls.h"
#include "support/plan_rank.h"

namespace horoacc::testing {
namespace {

/// Two ranks with calls that are carried out at once.
struct Pair {
  Pair() {
    settings.plan_rounds = 1;
    TuneAll(kBucketBytes, settings.last_arriver_bytes);
    for (int rank = 0; rank < 2; ++rank) {
      calls.push_back(std::make_unique<FakeCalls>(job, rank));
      ranks.push_back(std::make_unique<PlanRank>(
          rank, 2,
          [this, rank] {
            return std::make_unique<LockedPlan>(
                LockedPlan::Surroundings{*calls[rank], counters[rank], settings, tuned[rank],
                                         arena},
                Sum(), kNames);
          },
          memory[rank]));
    }
  }

  void TuneAll(uint64_t fusion_threshold, uint64_t last_arriver_bytes, const Way& way = {}) {
    for (Tuned& own : tuned) own.Change({fusion_threshold, last_arriver_bytes, way}, {});
  }

  /// Rounds one after the other.
  void Whole(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (const auto& rank : ranks) {
        for (size_t index = 0; index < kTensors; ++index) rank->Submit(index);
      }
      for (const auto& rank : ranks) CHECK(rank->WaitAll());
    }
  }

  FakeCalls::Job job;
  Settings settings;
  Tuned tuned[2]{Tuned(settings), Tuned(settings)};
  alignas(4096) std::byte no_memory[4096];
  const Arena arena{no_memory, sizeof no_memory, -1, 0};
  Counters counters[2];
  int32_t memory[2][kTensors] = {};
  std::vector<std::unique_ptr<FakeCalls>> calls;
  std::vector<std::unique_ptr<PlanRank>> ranks;
};

/// One step of a rank. False: it waits for the other rank, and is tried again when that has moved.
using Step = std::function<bool(Pair&, PlanRank&)>;
using Script = std::vector<Step>;

Step Submits(std::vector<size_t> indices, Dims shape = {1}) {
  return [=](Pair&, PlanRank& rank) {
    for (const size_t index : indices) rank.Submit(index, shape);
    return true;
  };
}

Step Waits() {
  return [](Pair&, PlanRank& rank) { return rank.WaitAll(); };
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
    pair.Whole(rounds);
    const bool more = interleavings.Next(pair, scripts);
    check(pair);
    // Whatever has happened, the ranks go on together, and lock again.
    if (!pair.job.aborted) {
      const uint64_t locked = pair.counters[0].plan_rounds;
      pair.Whole(12);
      CHECK(pair.counters[0].plan_rounds > locked);
      CHECK_EQ(pair.counters[0].plan_locks.load(), pair.counters[1].plan_locks.load());
      CHECK_EQ(pair.job.EndMoot(), 0U);  // and of the plans before no call is left over
    }
    if (!more || count == kMostInterleavings) return count;
  }
}

uint64_t Unlocks(const Counters& counters) {
  return counters.plan_unlocks_changed + counters.plan_unlocks_wait + counters.plan_unlocks_join +
         counters.plan_unlocks_refused + counters.plan_unlocks_peer + counters.plan_unlocks_end +
         counters.plan_unlocks_tuned;
}

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
  const Script script = kQuick + kRound + kQuick;
  CHECK(Explore(1, script, script, CheckLocked) > 1000);
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
      Script{[](Pair& pair, PlanRank&) { return pair.calls[1]->refuses_groups = true; }} + kRound +
      Script{[](Pair& pair, PlanRank&) { return !(pair.calls[1]->refuses_groups = false); }} +
      kQuick;
  Explore(kUntilLocked, kRound + kQuick, script, CheckBothLeft);
}

TEST(all_interleavings_of_an_end_and_a_new_plan) {
  const Step again = [](Pair&, PlanRank& rank) {
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
  const Step leaves = [](Pair&, PlanRank& rank) {
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

// A rank looks at the others at any time, in the midst of rounds as between them.
TEST(all_interleavings_of_looks_at_others) {
  const Step looks = [](Pair&, PlanRank& rank) {
    rank.plan().LookAtOthers();
    return true;
  };
  const Step leaves = [](Pair&, PlanRank& rank) {
    rank.plan().BeforeJoin(0);
    return true;
  };
  const Script looking = {looks, Submits({0, 1}), looks, Submits({2}), Waits(), looks};
  Explore(kUntilLocked, looking + kQuick, kQuick + Script{leaves} + kQuick, CheckBothLeft);
  Explore(kUntilLocked, looking + kQuick, kQuick + kQuick, CheckLocked);
}

// One rank drops its plan, and the other makes no round any more: no call is left over.
TEST(an_idle_plan_is_left) {
  Pair pair;
  pair.Whole(kUntilLocked + 1);
  pair.ranks[0]->Drop();
  CHECK_EQ(pair.job.EndMoot(), 2U);  // refusals, which are not moot
  pair.ranks[1]->plan().LookAtOthers();
  CHECK_EQ(pair.job.EndMoot(), 0U);
  CHECK_EQ(pair.counters[1].plan_unlocks_peer.load(), 1U);
}

// A rank drops its plan before it knows whether the others agree. They do not.
TEST(a_proposal_that_is_dropped) {
  Pair pair;
  pair.Whole(kUntilLocked - 2);
  pair.ranks[1]->MakeAgain();  // so it does not propose yet
  pair.Whole(1);
  pair.ranks[0]->Submit(0);
  pair.ranks[0]->Drop();
  CHECK_EQ(pair.job.EndMoot(), 1 + 2U);
  pair.ranks[1]->Submit(0);
  CHECK_EQ(pair.job.EndMoot(), 0U);
}

TEST(what_a_bucket_lacks) {
  Pair pair;
  pair.Whole(kUntilLocked);
  pair.ranks[0]->Submit(0);
  for (size_t index = 0; index < kTensors; ++index) pair.ranks[1]->Submit(index);
  PlansState state;
  pair.ranks[0]->plan().AddTo(state);
  CHECK_EQ(state.open.size(), 2U);
  CHECK_EQ(state.open[0].lacks, "'b'");
  CHECK(state.open[0].others == Calls::Others::kSubmitted);
  CHECK(pair.ranks[0]->WaitAll() || true);
  state = {};
  pair.ranks[0]->plan().AddTo(state);
  CHECK(state.open.empty());
  CHECK(state.left.ends_with(": it lacks 'b'"));
}

TEST(after_the_engine) {
  Pair pair;
  pair.Whole(kUntilLocked);
  LockedPlan& plan = pair.ranks[0]->plan();
  pair.ranks[0]->Submit(0);
  plan.Close();
  pair.ranks[0]->Submit(1);
  CHECK(pair.ranks[0]->failed()->kind == ErrorKind::kAborted);
  CHECK(plan.InFlight(0) && !plan.InFlight(1));
  CHECK(plan.Wait(0, 0).error().kind == ErrorKind::kAborted);
  CHECK(!plan.InFlight(0));
}

// Those in the arena and those that are not alternate: there are two buckets, and not three.
TEST(places_that_alternate) {
  Pair pair;
  pair.TuneAll(kBucketBytes, sizeof(int32_t));
  const auto round = [&] {
    for (const auto& rank : pair.ranks) {
      rank->Submit(0);
      rank->Submit(1, {2});
      rank->Submit(2);
    }
    for (const auto& rank : pair.ranks) CHECK(rank->WaitAll());
  };
  for (int k = 0; k < kUntilLocked; ++k) round();
  const size_t calls = pair.job.all.size();
  round();
  CHECK_EQ(pair.job.all.size() - calls, 2 * 2U);
  CheckLocked(pair);
}

// A rank sees a change of tuned settings sooner than the other, between two rounds or within one.
TEST(all_interleavings_of_tuning) {
  const auto tunes_to = [](Way way) {
    return [way](Pair& pair, PlanRank& rank) {
      const int me = &rank == pair.ranks[0].get() ? 0 : 1;
      const Tuned::Values now = pair.tuned[me].values();
      const uint64_t threshold = way == Way() ? sizeof(int32_t) : now.fusion_threshold;
      pair.tuned[me].Change({threshold, now.last_arriver_bytes, way}, {});
      rank.plan().AfterTuning();
      return true;
    };
  };
  const auto right = [](Pair& pair) {
    for (const auto& rank : pair.ranks) CHECK(!rank->failed());
  };
  for (const Way& way : {Way{}, Way{.algorithm = 1}, Way{.window_bytes = 4096}}) {
    const Step tunes = tunes_to(way);
    const Script before = Script{tunes} + kQuick;
    const Script after = kQuick + Script{tunes};
    const Script within = {Submits({0}), tunes, Submits({1, 2}), Waits()};
    for (int rounds = 1; rounds <= kUntilLocked; ++rounds) {
      for (const Script& one : {before, after, within}) {
        Explore(rounds, before + kQuick, one + kQuick, right);
        Explore(rounds, within + kQuick, one + kQuick, right);
      }
    }
  }
}

// Buckets of the new size, or by the new way, as soon as if the plan had not been left.
TEST(tuning_cuts_other_buckets) {
  Pair pair;
  pair.Whole(kUntilLocked + 1);
  const auto calls_of_a_round = [&] {
    const size_t calls = pair.job.all.size();
    pair.Whole(1);
    return pair.job.all.size() - calls;
  };
  CHECK_EQ(calls_of_a_round(), 2 * 2U);
  pair.TuneAll(1 << 20, pair.settings.last_arriver_bytes);
  for (const auto& rank : pair.ranks) rank->plan().AfterTuning();
  pair.Whole(kUntilLocked + 1);
  CHECK_EQ(calls_of_a_round(), 2 * 1U);
  CHECK(pair.job.all.back()->request.way == Way());
  const Way way{.algorithm = 3, .window_bytes = 8192};
  pair.TuneAll(1 << 20, pair.settings.last_arriver_bytes, way);
  for (const auto& rank : pair.ranks) rank->plan().AfterTuning();
  pair.Whole(kUntilLocked + 1);
  CHECK_EQ(calls_of_a_round(), 2 * 1U);
  for (size_t rank = 0; rank < 2; ++rank)
    CHECK((pair.job.all.rbegin() + static_cast<ptrdiff_t>(rank))->get()->request.way == way);
}

// A rank dies at each point: each wait ends, with an error.
TEST(all_interleavings_of_a_death) {
  const Step dies = [](Pair& pair, PlanRank&) {
    pair.job.Abort();
    return true;
  };
  for (size_t point = 0; point <= kRound.size(); ++point) {
    Script script(kRound.begin(), kRound.begin() + static_cast<ptrdiff_t>(point));
    Explore(kUntilLocked, kRound + kRound, script + Script{dies},
            [](Pair& pair) { CHECK(pair.ranks[0]->failed().has_value()); });
  }
}

}  // namespace
}  // namespace horoacc::testing
