// Ranks that have nothing more to reduce: the others go on with zeros in their place, on every
// controller and path, and afterwards everything is as before.
#include <algorithm>
#include <latch>
#include <memory>
#include <random>
#include <thread>

#include "support/join_calls.h"

namespace horoacc::testing {
namespace {

struct Way {
  Pairs settings;
  bool in_arena;
};

Pairs Early(Pairs settings) {
  settings.emplace_back("last_arriver_bytes", "8192");
  settings.emplace_back("window_bytes", "4096");
  settings.emplace_back("fusion_threshold", "20000");
  return settings;
}

const std::vector<Way> kWays = {
    {Early({}), false},
    {Early({}), true},
    {Early({{"reduce_path", "windows"}}), true},
    {Early({{"reduce_path", "staged"}}), false},
    {Early(kControllers[1]), false},
    {Early(kControllers[1]), true},
};

/// The tensors of one step: small and large ones, unnamed, a group of two, and every kind of
/// operation. Filled with the rank's number for the step.
class Step {
 public:
  Step(Engine& engine, bool in_arena, int32_t value) : engine_(engine) {
    for (const size_t count : {3, 1500, 5, 5000, 2, 3000, 7}) {
      numbers_.push_back(std::make_unique<Numbers>(engine, count, in_arena));
      numbers_.back()->Fill(value);
    }
    handles_.push_back(Submit(engine, Reduction("", *numbers_[0])));
    handles_.push_back(Submit(engine, Reduction("sum", *numbers_[1])));
    handles_.push_back(Submit(engine, Reduction("average", *numbers_[2], ReduceOp::kAverage)));
    Submission group = Reduction("group", *numbers_[3]);
    group.request.tensors.push_back({DType::kInt32, {7}});
    group.buffers.push_back({numbers_[6]->data(), numbers_[6]->data()});
    handles_.push_back(Submit(engine, std::move(group)));
    handles_.push_back(Submit(engine, Reduction("min", *numbers_[4], ReduceOp::kMin)));
    handles_.push_back(Submit(engine, Reduction("product", *numbers_[5], ReduceOp::kProduct)));
  }
  /// `given`: what every rank gives; zero where it takes no part.
  void Expect(const std::vector<int32_t>& given) {
    for (const uint64_t handle : handles_) Finish(engine_, handle);
    int32_t sum = 0;
    int32_t product = 1;
    for (const int32_t number : given) {
      sum += number;
      product *= number;
    }
    for (const size_t k : {0, 1, 3, 6}) numbers_[k]->Expect(sum);
    numbers_[2]->Expect(sum / static_cast<int32_t>(given.size()));
    numbers_[4]->Expect(*std::ranges::min_element(given));
    numbers_[5]->Expect(product);
  }

 private:
  Engine& engine_;
  std::vector<std::unique_ptr<Numbers>> numbers_;
  std::vector<uint64_t> handles_;
};

TEST(uneven_steps) {
  for (const Way& way : kWays) {
    for (const int ranks : {2, 3, 6}) {
      RunRanks(ranks, way.settings, [&](Engine& engine, int rank) {
        for (int round = 0; round < ranks + 1; ++round) {
          const auto steps_of = [&](int r) { return 1 + (r + round) % ranks * 2; };
          int last = 0;
          for (int r = 0; r < ranks; ++r) last = steps_of(r) > steps_of(last) ? r : last;
          for (int step = 0; step < steps_of(rank); ++step) {
            std::vector<int32_t> given(ranks);
            for (int r = 0; r < ranks; ++r) given[r] = step < steps_of(r) ? r + step + 2 : 0;
            Step(engine, way.in_arena, rank + step + 2).Expect(given);
          }
          CHECK_EQ(EndJoin(engine, BeginJoin(engine)), last);
        }
      });
    }
  }
}

// Nobody waits before it joins, and the order of everything is left to chance.
TEST(calls_in_flight_are_carried_out) {
  for (const Way& way : kWays) {
    for (const int ranks : {2, 5}) {
      RunRanks(ranks, way.settings, [&](Engine& engine, int rank) {
        std::mt19937 chance(rank);
        for (int round = 0; round < 12; ++round) {
          std::mt19937 same(round);
          const int with_all = static_cast<int>(same() % 4);
          const int last = static_cast<int>(same() % ranks);
          std::vector<std::unique_ptr<Step>> steps;
          const auto give = [&](int step) {
            steps.push_back(std::make_unique<Step>(engine, way.in_arena, rank + step + 1));
          };
          const auto expect = [&](size_t step, bool all) {
            std::vector<int32_t> given(ranks);
            for (int r = 0; r < ranks; ++r)
              given[r] = all || r == last ? r + static_cast<int>(step) + 1 : 0;
            steps[step]->Expect(given);
          };
          // A name is free again once its handle is released: one step at a time is in flight.
          for (int step = 0; step < with_all; ++step) {
            give(step);
            if (step + 1 < with_all || rank == last) expect(step, true);
          }
          if (rank == last) {
            for (int step = with_all; step < with_all + 5; ++step) {
              give(step);
              expect(step, false);
            }
          }
          if (chance() % 2) std::this_thread::yield();
          const uint64_t join = BeginJoin(engine);
          const bool first = chance() % 2;
          if (first) CHECK_EQ(EndJoin(engine, join), last);
          if (with_all > 0 && rank != last) expect(with_all - 1, true);
          if (!first) CHECK_EQ(EndJoin(engine, join), last);
        }
      });
    }
  }
}

// Large calls that are decided and not carried out when their rank joins: those of the same names
// that follow must leave their rows alone until it has.
TEST(a_joined_rank_that_lags_is_waited_for) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (int round = 0; round < 30; ++round) {
        Numbers numbers(engine, 300000, true);
        numbers.Fill(rank + 1);
        const uint64_t shared = Submit(engine, Reduction("large", numbers));
        if (rank == 2) {
          const uint64_t join = BeginJoin(engine);
          Finish(engine, shared);
          numbers.Expect(6);
          (void)EndJoin(engine, join);
          continue;
        }
        Finish(engine, shared);
        numbers.Expect(6);
        for (int step = 0; step < 4; ++step) {
          numbers.Fill(rank + 1);
          Finish(engine, Submit(engine, Reduction("large", numbers)));
          numbers.Expect(3);
        }
        CHECK(EndJoin(engine, BeginJoin(engine)) < 2);
      }
    });
  }
}

// A rank that joined and waits for nothing: its coordinator keeps the log going.
TEST(a_join_that_nobody_waits_for_holds_nobody_up) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint64_t early = rank > 0 ? BeginJoin(engine) : 0;
      if (rank == 0) {
        Numbers numbers(engine, 40000, true);
        for (int step = 0; step < 300; ++step) {
          numbers.Fill(step);
          Finish(engine, Submit(engine, Reduction(step % 3 ? "t" : "", numbers)));
          numbers.Expect(step);
        }
      }
      CHECK_EQ(EndJoin(engine, rank > 0 ? early : BeginJoin(engine)), 0);
      Numbers numbers(engine, 5, false);
      numbers.Fill(1);
      Finish(engine, Submit(engine, Reduction("", numbers)));
      numbers.Expect(3);
    });
  }
}

TEST(other_collectives_fail_on_all_that_call_them) {
  for (const Pairs& controller : kControllers) {
    RunRanks(4, controller, [&](Engine& engine, int rank) {
      if (rank < 2) {
        int32_t in[4 * 8] = {};  // of a scatter the root gives eight to each rank
        int32_t out[8] = {};
        for (const Collective collective :
             {Collective::kBroadcast, Collective::kAllgather, Collective::kAlltoall,
              Collective::kReducescatter, Collective::kBarrier, Collective::kReduce,
              Collective::kGather, Collective::kScatter, Collective::kMonitoredBarrier}) {
          const bool barrier = IsBarrier(collective);
          Submission call = Make(collective, barrier ? "" : "t", DType::kInt32, {8}, in,
                                 collective == Collective::kBroadcast ? out : nullptr);
          if (barrier) {
            call.request.tensors.clear();
            call.buffers.clear();
          }
          const Status outcome = WaitAndRelease(engine, Submit(engine, std::move(call)));
          CHECK(!outcome.ok());
          CHECK(outcome.error().kind == ErrorKind::kMismatch);
          const std::string& text = outcome.error().message;
          if (text.find(std::string(NameOf(collective)) +
                        " is not possible while rank(s) 2, 3 have joined") == std::string::npos) {
            check::Fail(__FILE__, __LINE__, text);
          }
          // Also a disagreement is one among those that are left.
          Numbers numbers(engine, rank + 1, false);
          const Status differ = WaitAndRelease(engine, Submit(engine, Reduction("d", numbers)));
          CHECK(differ.error().message.find("mismatched shape: rank 0 has [1], rank 1 has [2]") !=
                std::string::npos);
        }
      }
      CHECK(EndJoin(engine, BeginJoin(engine)) < 2);
    });
  }
}

// The first rank's calls come before the others join: nobody may be missed in between.
TEST(joining_meets_submitting) {
  for (const Pairs& controller : kControllers) {
    RunRanks(4, controller, [&](Engine& engine, int rank) {
      for (int round = 0; round < 300; ++round) {
        Numbers numbers(engine, 4, false);
        numbers.Fill(rank + 1);
        uint64_t call = 0;
        if (rank == round % 4) call = Submit(engine, Reduction("t", numbers));
        const uint64_t join = BeginJoin(engine);
        if (rank == round % 4) {
          Finish(engine, call);
          numbers.Expect(rank + 1);
        }
        (void)EndJoin(engine, join);
      }
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
