// Locked plans of engines, whose ranks deviate at random.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "schedule/algorithms.h"
#include "support/plan_rank.h"
#include "support/ranks.h"
#include "support/seeds.h"

namespace horoacc::testing {
namespace {

const Pairs kSettings = {{"plan_rounds", "1"}, {"fusion_threshold", "8"}};

/// Of a rank's engine; the tensors lie in its arena, or not.
PlanRank MakeRank(Engine& engine, int rank, int ranks, int32_t* memory, int64_t elements) {
  return {rank, ranks, [&engine] { return engine.MakePlan(Sum(), kNames); }, memory, elements};
}

/// The first of schedule::Algorithms().
const auto kAllreduces = static_cast<uint32_t>(std::ranges::count(
    schedule::Algorithms(), schedule::Goal::kAllreduce, &schedule::Algorithm::goal));

constexpr int64_t kLong = 60 * kSecond;
constexpr int64_t kTooLongForNews = 20'000;  // numbers: inputs of other hosts come as data

// Rounds in which all ranks do the same: no host sends a message to another, but for a sign of life
// a second.
TEST(locked_rounds_send_no_message) {
  struct Job {
    int ranks;
    const char *hosts, *reduction;
  };
  for (const auto& [ranks, hosts, reduction] :
       {Job{2, "1+1", "auto"}, Job{4, "2+2", "canonical"}, Job{3, "2+1", "fast"},
        Job{4, "each", "canonical"}, Job{8, "2+2+2+2", "auto"}}) {
    const Pairs settings = With(kSettings, {{"simulated_hosts", hosts}, {"reduction", reduction}});
    RunRanks(ranks, settings, [&](Engine& engine, int rank) {
      std::vector<int32_t> data(kTensors * kTooLongForNews);
      PlanRank tensors = MakeRank(engine, rank, ranks, data.data(), kTooLongForNews);
      const auto rounds = [&](int count) {
        for (int round = 0; round < count; ++round) {
          for (size_t index = 0; index < kTensors; ++index) tensors.Submit(index);
          CHECK(tensors.WaitAll(NowNs() + kLong));
          CHECK(!tensors.failed());
        }
      };
      // The first round of the plan goes through the root, which grants its calls.
      rounds(kUntilLocked + 2);
      const uint64_t granted = Counter(engine, "plan_granted");
      uint64_t least = std::numeric_limits<uint64_t>::max();
      for (int k = 0; k < 20; ++k) {
        const uint64_t messages = Counter(engine, "control_messages");
        rounds(2);
        least = std::min(least, Counter(engine, "control_messages") - messages);
      }
      CHECK_EQ(least, 0U);
      CHECK_EQ(Counter(engine, "plan_granted") - granted, 40 * kTensors);
      CHECK_EQ(Counter(engine, "plan_dropped"), 0U);
    });
  }
}

// A rank has made all calls of a round, and refuses those of the next one. The other leaves in this
// round, so that it never makes them: the engine ends them.
TEST(refusals_that_nobody_meets_end) {
  for (const Pairs& hosts : kControllers) {
    std::latch dropped(2);
    RunRanks(2, With(kSettings, hosts), [&](Engine& engine, int rank) {
      int32_t data[kTensors] = {};
      auto plan = engine.MakePlan(Sum(), kNames);
      const auto submit = [&](size_t index) {
        int32_t* const at = &data[index];
        CHECK(plan->Submit(index, {DType::kInt32, {1}}, {at, at}).ok());
      };
      const auto wait = [&](size_t index) { CHECK(plan->Wait(index, NowNs() + kLong).ok()); };
      for (int round = 0; round < kUntilLocked; ++round) {
        for (size_t index = 0; index < kTensors; ++index) submit(index);
        for (size_t index = 0; index < kTensors; ++index) wait(index);
        plan->EndRound();
      }
      for (size_t index = 0; rank == 0 && index < kTensors; ++index) submit(index);
      if (rank == 0) plan = engine.MakePlan(Sum(), kNames);
      dropped.arrive_and_wait();
      for (size_t index = 0; index < kTensors; ++index) {
        submit(index);
        if (rank == 1) wait(index);
      }
      for (size_t index = 0; index < kTensors; ++index) wait(index);
      plan->EndRound();
      const auto failed = [&] {
        const auto events = engine.events().ring().Read();
        return std::ranges::count_if(events, [](const FlightRing::Record& event) {
          return event.phase == Phase::kError && event.tensor.find("(plan ") != std::string::npos;
        });
      };
      const ptrdiff_t buckets = 2;
      const int64_t limit = NowNs() + kLong;
      while (rank == 0 && failed() < 2 * buckets && NowNs() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (rank == 0) CHECK_EQ(failed(), 2 * buckets);
      plan.reset();
    });
  }
}

// Two threads of a rank wait for the tensors of one bucket.
TEST(threads_wait_for_one_bucket) {
  RunRanks(2, kSettings, [](Engine& engine, int rank) {
    int32_t data[kTensors] = {};
    const auto plan = engine.MakePlan(Sum(), kNames);
    const auto wait = [&](size_t index) { CHECK(plan->Wait(index, NowNs() + kLong).ok()); };
    for (int round = 0; round < 3000; ++round) {
      for (size_t index = 0; index < kTensors; ++index) {
        data[index] = round + rank;
        CHECK(plan->Submit(index, {DType::kInt32, {1}}, {&data[index], &data[index]}).ok());
      }
      std::thread other(wait, 0);
      for (size_t index = 1; index < kTensors; ++index) wait(index);
      other.join();
      plan->EndRound();
      for (const int32_t sum : data) CHECK_EQ(sum, 2 * round + 1);
    }
    CHECK_EQ(Counter(engine, "plan_rounds"), 3000U - kUntilLocked);
  });
}

TEST(ways_that_are_impossible) {
  const auto number_of = [](std::string_view name) {
    const auto algorithms = schedule::Algorithms();
    return static_cast<uint32_t>(
        1 + std::ranges::find(algorithms, name, &schedule::Algorithm::name) - algorithms.begin());
  };
  struct Case {
    Pairs settings;
    const char* algorithm;
    const char* refusal;
  };
  for (const auto& [settings, algorithm, refusal] :
       {Case{{}, "ring", ""}, Case{{}, "ring_all_gather", "that is no algorithm of allreduces"},
        Case{{}, "unknown", "that is no algorithm of allreduces"},
        Case{{{"algorithm", "trees"}}, "ring", "the algorithm was set"},
        Case{{{"reduction", "canonical"}}, "ring", "its sums have other bits"},
        Case{{{"reduction", "canonical"}}, "canonical", ""}}) {
    RunRanks(1, settings, [&, algorithm = algorithm, refusal = refusal](Engine& engine, int) {
      Tuned::Values values = engine.tuned().values();
      values.way.algorithm = number_of(algorithm);
      const Status status = engine.Tune(values, {});
      CHECK_EQ(status.ok(), std::string_view(refusal).empty());
      if (!status.ok()) CHECK(status.error().message.find(refusal) != std::string::npos);
      CHECK_EQ(engine.tuned().values() == values, status.ok());
    });
  }
}

/// Rounds in which ranks do things at other points than others, drawn by a seed that all know.
TEST(engines_that_deviate) {
  std::mt19937_64 shapes(19);
  std::atomic<uint64_t> granted_short{0}, granted_long{0};
  // By number of ranks, over all seeds: the steps that one seed draws may all deviate too soon to
  // lock.
  std::array<std::atomic<uint64_t>, 5> locked{};
  for (int round = 0; round < 8; ++round) {
    check::ReseedHalfway(shapes, round, 8);
    const uint64_t seed = shapes();
    struct Job {
      int ranks;
      const char* hosts;
      int64_t elements = 1;
    };
    const Job jobs[] = {{1, ""},
                        {2, ""},
                        {3, ""},
                        {4, ""},
                        {2, "1+1"},
                        {3, "2+1"},
                        {4, "2+2"},
                        {4, "each"},
                        {2, "1+1", kTooLongForNews},
                        {3, "2+1", kTooLongForNews},
                        {4, "2+2", kTooLongForNews},
                        {4, "each", kTooLongForNews}};
    for (const auto& [ranks, hosts, elements] : jobs) {
      std::atomic<uint64_t>& granted = elements > 1 ? granted_long : granted_short;
      // In rank order the sums of 2+1 go from rank to rank.
      const std::string reduction = elements > 1 ? "fast" : "auto";
      RunRanks(ranks, With(kSettings, {{"simulated_hosts", hosts}, {"reduction", reduction}}),
               [&, ranks = ranks, elements = elements](Engine& engine, int rank) {
                 std::mt19937_64 own(seed + static_cast<uint64_t>(rank) + 1);
                 std::mt19937_64 common(seed);
                 std::vector<int32_t> plain(kTensors * static_cast<size_t>(elements));
                 auto* const shared =
                     static_cast<int32_t*>(engine.AllocateShared(plain.size() * sizeof(int32_t)));
                 {
                   PlanRank tensors = MakeRank(engine, rank, ranks,
                                               seed % 2 == 0 ? plain.data() : shared, elements);
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
                     const Way way{static_cast<uint32_t>(common() % (kAllreduces + 1)),
                                   4096 * (common() % 3)};
                     if (what == 6) {
                       Tuned::Values values = engine.tuned().values();
                       values.way = way;
                       CHECK(engine.Tune(values, {}).ok());
                     }
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
                   locked[static_cast<size_t>(ranks)] += Counter(engine, "plan_rounds");
                   granted += Counter(engine, "plan_granted");
                 }
                 engine.FreeShared(shared);
               });
    }
  }
  for (const size_t ranks : {2, 3, 4}) CHECK(locked[ranks] > 0);
  CHECK_EQ(granted_short, 0U);
  CHECK(granted_long > 0);
}

}  // namespace
}  // namespace horoacc::testing
