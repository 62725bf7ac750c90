// Adding, using and removing process sets, with calls that go wrong or come at the wrong time.
#include <chrono>
#include <latch>
#include <sstream>

#include "ranks.h"

namespace horoacc::testing {
namespace {

const std::vector<Pairs> kPlanes = {{{"control", "board"}}, {{"control", "tcp"}}};

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

bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline = NowNs() + 30 * kSecond;
  while (!condition()) {
    if (NowNs() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

uint64_t Counter(const Engine& engine, const std::string& name) {
  std::istringstream lines(engine.CounterText());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + "=")) return std::stoull(line.substr(name.size() + 1));
  }
  check::Fail(__FILE__, __LINE__, "no counter " + name);
}

// The others wait for a rank that was called with nonsense: it must take part, and the next
// addition is a new one for everybody.
TEST(a_bad_call_on_one_rank_is_an_error_on_all) {
  const std::vector<std::vector<int>> kBad = {{}, {0, 0}, {0, 7}, {-1}};
  for (const Pairs& plane : kPlanes) {
    RunRanks(3, plane, [&](Engine& engine, int rank) {
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

// A script that adds and removes sets for ever; numbers do not come back, places do.
TEST(sets_may_come_and_go_for_ever) {
  for (const Pairs& plane : kPlanes) {
    RunRanks(3, plane, [&](Engine& engine, int rank) {
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
    const auto again = engine.AddProcessSet({1, 2, 3, 4, 5, 6});
    if (!again.ok()) {
      // The removed one was not done everywhere when the ranks agreed; it is by the next time.
      CHECK(engine.AddProcessSet({1, 2, 3, 4, 5, 6}).ok());
    }
  });
}

// A thread submits to a set that another thread is removing: whatever comes of it, the call ends.
TEST(a_call_that_meets_a_removal_ends) {
  for (const Pairs& plane : kPlanes) {
    std::latch submitted(1);
    RunRanks(3, plane, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 1}).value();
      if (rank < 2) CHECK_EQ(Sum(engine, pair), 2.0f);
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
        submitted.count_down();
        CHECK(handle.ok());
        const Status outcome = WaitAndRelease(engine, handle.value());
        CHECK(!outcome.ok());
        CHECK(outcome.error().kind == ErrorKind::kAborted);
        CHECK(outcome.error().message.find("removed") != std::string::npos);
        remover.join();
        CHECK(!SubmitSum(engine, pair, value).ok());
      }
      CHECK_EQ(Sum(engine, 0), 3.0f);
    });
  }
}

// What peers may still read when a set is removed is freed all the same.
TEST(a_removed_set_leaves_no_memory_behind) {
  for (const Pairs& plane : kPlanes) {
    RunRanks(3, plane, [&](Engine& engine, int rank) {
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
