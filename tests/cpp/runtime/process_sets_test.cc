// Adding, using and removing process sets, with calls that go wrong or come at the wrong time.
#include <chrono>
#include <latch>
#include <optional>
#include <sstream>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

Result<uint64_t> SubmitSum(Engine& engine, uint32_t process_set, float& value) {
  Submission submission = Make(Collective::kAllreduce, "sum", DType::kFloat32, {1}, &value, &value);
  submission.process_set = process_set;
  return engine.Submit(std::move(submission));
}

float Sum(Engine& engine, uint32_t process_set) {
  float value = 1;
  auto handle = SubmitSum(engine, process_set, value);
  CHECK(handle.ok());
  CHECK(WaitAndRelease(engine, handle.value()).ok());
  return value;
}

constexpr auto kWhole = SetClaim::kWhole;
constexpr auto kOwnPart = SetClaim::kOwnPart;

// The others wait for a rank that was called with nonsense: it must take part, and the next
// addition is a new one for everybody.
TEST(a_bad_call_on_one_rank_is_an_error_on_all) {
  const std::vector<std::vector<int>> kBad = {{}, {0, 0}, {0, 7}, {-1}};
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (const std::vector<int>& bad : kBad) {
        const auto added = engine.AddProcessSet(rank == 1 ? bad : std::vector<int>{0, 1});
        CHECK(!added.ok());
        CHECK(added.error().kind == ErrorKind::kInvalid);
        if (rank != 1) CHECK(added.error().message.find("rank 1") != std::string::npos);
      }
      const uint32_t pair = engine.AddProcessSet({1, 0}).value();
      if (rank < 2) CHECK_EQ(Sum(engine, pair), 2.0f);
      const Status removed = engine.RemoveProcessSet(rank == 2 ? 0 : pair);
      CHECK(!removed.ok());
      CHECK(removed.error().kind == ErrorKind::kInvalid);
      if (rank < 2) CHECK_EQ(Sum(engine, pair), 2.0f);
      CHECK(engine.RemoveProcessSet(pair).ok());
      CHECK(!engine.ProcessSetRanks(pair).has_value());
    });
  }
}

// The ranks' calls meet whatever they ask for: nobody waits for a call of the other kind.
TEST(an_addition_that_meets_a_removal_is_an_error_on_all) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 1}).value();
      std::optional<Error> error;
      if (rank == 1) {
        const Status removed = engine.RemoveProcessSet(pair);
        if (!removed.ok()) error = removed.error();
      } else {
        const auto added = engine.AddProcessSet({1, 2});
        if (!added.ok()) error = added.error();
      }
      CHECK(error.has_value());
      CHECK(error->kind == ErrorKind::kInvalid);
      CHECK_EQ(error->message, rank == 1 ? "process sets differ: rank 1 was asked to remove one, "
                                           "rank 0 to add one"
                                         : "process sets differ: rank " + std::to_string(rank) +
                                               " was asked to add one, rank 1 to remove one");
      CHECK_EQ(error->culprit, rank == 1 ? 0 : 1);
      if (rank < 2) CHECK_EQ(Sum(engine, pair), 2.0f);
      CHECK(engine.RemoveProcessSet(pair).ok());
      CHECK_EQ(engine.AddProcessSet({1, 2}).ok(), true);
    });
  }
}

// As a communicator that was split gives each rank its part.
TEST(every_rank_may_name_the_part_that_it_is_in) {
  const std::vector<std::vector<int>> kPartOf = {{0, 3}, {1}, {2, 4}, {0, 3}, {2, 4}};
  for (const Pairs& controller : kControllers) {
    RunRanks(5, controller, [&](Engine& engine, int rank) {
      const std::vector<int>& part = kPartOf[rank];
      for (int round = 0; round < 2; ++round) {
        const uint32_t own = engine.AddProcessSet(part, kOwnPart).value();
        CHECK(engine.ProcessSetRanks(own) == part);
        CHECK_EQ(Sum(engine, own), static_cast<float>(part.size()));
        std::vector<std::vector<int>> known;
        for (const uint32_t id : engine.ProcessSetIds())
          known.push_back(engine.ProcessSetRanks(id).value());
        CHECK(known == (std::vector<std::vector<int>>{{0, 1, 2, 3, 4}, {0, 3}, {1}, {2, 4}}));
        CHECK(engine.RemoveProcessSet(own, kOwnPart).ok());
        CHECK_EQ(engine.ProcessSetIds().size(), 1);
      }
      const uint32_t same = engine.AddProcessSet({1, 2}, rank % 2 ? kOwnPart : kWhole).value();
      if (rank == 1 || rank == 2) CHECK_EQ(Sum(engine, same), 2.0f);
      CHECK(engine.RemoveProcessSet(same, kOwnPart).ok());
    });
  }
}

TEST(parts_that_are_none_are_an_error_on_all) {
  using Ranks = std::vector<int>;
  const std::vector<std::vector<Ranks>> kBad = {
      {{0, 1}, {0, 1}, {1, 2}},  // they overlap
      {{0, 1}, {0, 2}, {0, 2}},  // rank 1 is not in its own
      {{0, 1}, {0, 1}, {5}},     // one is refused
  };
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (const std::vector<Ranks>& bad : kBad) {
        const auto added = engine.AddProcessSet(bad[rank], kOwnPart);
        CHECK(!added.ok());
        CHECK(added.error().kind == ErrorKind::kInvalid);
      }
      // Parts, but rank 0 means them for all.
      CHECK(!engine.AddProcessSet({rank}, rank == 0 ? kWhole : kOwnPart).ok());
      // One of the parts is a set already: none is added.
      const uint32_t one = engine.AddProcessSet({1}).value();
      CHECK(!engine.AddProcessSet({rank}, kOwnPart).ok());
      CHECK_EQ(engine.ProcessSetIds().size(), 2);
      CHECK(engine.RemoveProcessSet(one).ok());
      CHECK(engine.AddProcessSet({rank}, kOwnPart).ok());
      CHECK_EQ(engine.ProcessSetIds().size(), 4);
    });
  }
}

// Only a rank that stands alone with it is named for it.
TEST(removing_an_unknown_set_takes_part) {
  constexpr uint32_t kUnknown = 40;
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 1}).value();
      const Status alone = engine.RemoveProcessSet(rank == 2 ? kUnknown : pair);
      CHECK(!alone.ok());
      CHECK(alone.error().kind == ErrorKind::kInvalid);
      CHECK_EQ(alone.error().culprit, 2);
      const Status alike = engine.RemoveProcessSet(kUnknown);
      CHECK(!alike.ok());
      CHECK_EQ(alike.error().message, "a process set that is not registered cannot be removed");
      CHECK_EQ(alike.error().culprit, -1);
      CHECK(engine.RemoveProcessSet(pair).ok());
    });
  }
}

// A script that adds and removes sets for ever; numbers do not come back, places do.
TEST(sets_may_come_and_go_for_ever) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      uint32_t last = 0;
      for (int round = 0; round < 3 * static_cast<int>(kMaxProcessSets); ++round) {
        std::vector<int> ranks = {0, 1, 2};
        ranks.erase(ranks.begin() + round % 3);
        const auto added = engine.AddProcessSet(ranks);
        if (!added.ok()) check::Fail(__FILE__, __LINE__, added.error().message);
        CHECK(added.value() != last);
        last = added.value();
        if (rank != round % 3) {
          CHECK_EQ(Sum(engine, last), 2.0f);
        } else {
          float value = 0;
          CHECK(!SubmitSum(engine, last, value).ok());
        }
        CHECK(engine.RemoveProcessSet(last).ok());
      }
    });
  }
}

// While sets come and go, another thread asks after a call of set 0, and so looks at every set that
// has calls in flight: it must not mistake one for the next in its place.
TEST(a_poller_holds_no_set_beyond_its_end) {
  for (const Pairs& controller : kControllers) {
    std::latch polled(1);
    RunRanks(2, controller, [&](Engine& engine, int rank) {
      float late = 1;
      Submission submission =
          Make(Collective::kAllreduce, "late", DType::kFloat32, {1}, &late, &late);
      std::optional<uint64_t> handle;
      std::jthread poller;
      if (rank == 0) {
        handle = engine.Submit(submission).value();
        poller = std::jthread([&](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            CHECK(!engine.Poll(*handle).value());
            CHECK(engine.Wait(*handle, NowNs() + kMillisecond).error().kind == ErrorKind::kTimeout);
          }
        });
      }
      for (int round = 0; round < 100; ++round) {
        const uint32_t set = engine.AddProcessSet({0}).value();
        if (rank == 0) CHECK_EQ(Sum(engine, set), 1.0f);
        CHECK(engine.RemoveProcessSet(set).ok());
      }
      if (rank == 0) {
        poller.request_stop();
        poller.join();
        polled.count_down();
      } else {
        polled.wait();
        handle = engine.Submit(submission).value();
      }
      CHECK(WaitAndRelease(engine, *handle).ok());
      CHECK_EQ(late, 2.0f);
    });
  }
}

// A signal ends the wait of the rank that got it, not what the ranks have agreed to do.
TEST(an_interrupted_addition_goes_on) {
  for (const Pairs& controller : kControllers) {
    std::latch interrupted(1);
    RunRanks(2, controller, [&](Engine& engine, int rank) {
      if (rank == 0) {
        const auto added = engine.AddProcessSet({1}, kWhole, [] { return true; });
        CHECK(!added.ok());
        CHECK(added.error().kind == ErrorKind::kTimeout);
        interrupted.count_down();
        // The next call comes after it on every rank.
        CHECK(!engine.AddProcessSet({1}).ok());
      } else {
        interrupted.wait();
        CHECK_EQ(engine.AddProcessSet({1}).value(), 1);
        CHECK(!engine.AddProcessSet({1}).ok());
      }
      CHECK(engine.ProcessSetRanks(1).has_value());
      if (rank == 1) CHECK_EQ(Sum(engine, 1), 1.0f);
      CHECK(engine.RemoveProcessSet(1).ok());
    });
  }
}

// A rank that leaves while its own addition still waits for the others.
TEST(shutting_down_ends_an_interrupted_addition) {
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    if (rank == 0) CHECK(!engine.AddProcessSet({0}, kWhole, [] { return true; }).ok());
  });
}

TEST(too_many_sets_at_a_time) {
  RunRanks(7, {}, [&](Engine& engine, int) {
    std::vector<uint32_t> sets;
    for (uint32_t subset = 1; sets.size() < kMaxProcessSets - 1; ++subset) {
      std::vector<int> ranks;
      for (int rank = 0; rank < 7; ++rank) {
        if (subset >> rank & 1) ranks.push_back(rank);
      }
      sets.push_back(engine.AddProcessSet(ranks).value());
    }
    CHECK(!engine.AddProcessSet({1, 2, 3, 4, 5, 6}).ok());
    CHECK(engine.RemoveProcessSet(sets[5]).ok());
    // The removed one may not be done everywhere yet: that is waited for.
    CHECK(engine.AddProcessSet({1, 2, 3, 4, 5, 6}).ok());
  });
}

// A thread submits to a set that another thread is removing: whatever comes of it, the call ends.
TEST(a_call_that_meets_a_removal_ends) {
  for (const Pairs& controller : kControllers) {
    std::latch submitted(1);
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 1}).value();
      if (rank < 2) CHECK_EQ(Sum(engine, pair), 2.0f);
      const uint64_t in_use = Counter(engine, "arena_in_use");
      if (rank > 0) {
        submitted.wait();
        CHECK(engine.RemoveProcessSet(pair).ok());
      } else {
        float value = 1;
        const uint64_t before = Counter(engine, "submissions");
        std::jthread remover([&] { CHECK(engine.RemoveProcessSet(pair).ok()); });
        // The removal is under way, and waits for the other ranks.
        CHECK(Eventually([&] { return Counter(engine, "submissions") > before; }));
        const auto handle = SubmitSum(engine, pair, value);
        Submission group = Make(Collective::kAllreduce, "group", DType::kFloat32, {1}, &value,
                                &value);  // has a block beside its row
        group.request.tensors.push_back(group.request.tensors[0]);
        group.buffers.push_back(group.buffers[0]);
        group.process_set = pair;
        const auto grouped = engine.Submit(std::move(group));
        submitted.count_down();
        for (const auto& call : {handle, grouped}) {
          CHECK(call.ok());
          const Status outcome = WaitAndRelease(engine, call.value());
          CHECK(!outcome.ok());
          CHECK(outcome.error().kind == ErrorKind::kAborted);
          CHECK(outcome.error().message.find("removed") != std::string::npos);
        }
        remover.join();
        CHECK(Eventually([&] { return Counter(engine, "arena_in_use") <= in_use; }));
        CHECK(!SubmitSum(engine, pair, value).ok());
      }
      CHECK_EQ(Sum(engine, 0), 3.0f);
    });
  }
}

// What peers may still read when a set is removed is freed all the same.
TEST(a_removed_set_leaves_no_memory_behind) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint64_t before = Counter(engine, "arena_in_use");
      for (int round = 0; round < 10; ++round) {
        const uint32_t pair = engine.AddProcessSet({0, 1}).value();
        if (rank < 2) {
          // A group needs memory besides its row, until all ranks have finished it; large private
          // tensors pass through window rings.
          std::vector<float> a(200000, 1.0f);
          std::vector<float> b(3, 1.0f);
          Submission group =
              Make(Collective::kAllreduce, "group", DType::kFloat32, {200000}, a.data(), a.data());
          group.request.tensors.push_back({DType::kFloat32, {3}});
          group.buffers.push_back({b.data(), b.data()});
          group.process_set = pair;
          CHECK(WaitAndRelease(engine, engine.Submit(std::move(group)).value()).ok());
          CHECK_EQ(a.back() + b.back(), 4.0f);
        }
        CHECK(engine.RemoveProcessSet(pair).ok());
      }
      CHECK(Eventually([&] { return Counter(engine, "arena_in_use") == before; }));
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
