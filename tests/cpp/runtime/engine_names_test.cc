// Names and numbers of calls: whose they are, when they are free again, and more of them than ids.
#include <latch>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

// On one host only: between hosts no rank sees what the others wait for.
TEST(different_process_sets_for_one_name) {
  RunRanks(3, {}, [&](Engine& engine, int rank) {
    const uint32_t pair = engine.AddProcessSet({0, 1}).value();
    for (int round = 0; round < 2; ++round) {
      float value = 1;
      if (rank < 2) {
        Submission submission =
            Make(Collective::kAllreduce, "x", DType::kFloat32, {1}, &value, &value);
        submission.process_set = rank == 0 ? pair : 0;
        const Status outcome = WaitAndRelease(engine, engine.Submit(std::move(submission)).value());
        CHECK(!outcome.ok());
        CHECK(outcome.error().kind == ErrorKind::kMismatch);
        CHECK(outcome.error().message.find("process set") != std::string::npos);
        CHECK(outcome.error().message.find("rank 1") != std::string::npos);
      }
      CHECK(WaitAndRelease(engine, engine
                                       .Submit(Make(Collective::kAllreduce, "all", DType::kFloat32,
                                                    {1}, &value, &value))
                                       .value())
                .ok());
      CHECK_EQ(value, 3.0f);
      value = 1;
      CHECK(WaitAndRelease(engine, engine
                                       .Submit(Make(Collective::kAllreduce, "x", DType::kFloat32,
                                                    {1}, &value, &value))
                                       .value())
                .ok());
      CHECK_EQ(value, 3.0f);
    }
  });
}

// A rank that has not been on a core since may still say that it waits for a call that is over.
TEST(one_name_in_one_process_set_after_the_other) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 1}).value();
      for (int round = 0; round < 300; ++round) {
        for (const uint32_t id : {0u, pair}) {
          if (id == pair && rank == 2) continue;
          float value = 1;
          Submission submission =
              Make(Collective::kAllreduce, "x", DType::kFloat32, {1}, &value, &value);
          submission.process_set = id;
          const Status outcome =
              WaitAndRelease(engine, engine.Submit(std::move(submission)).value());
          if (!outcome.ok()) check::Fail(__FILE__, __LINE__, outcome.error().message);
          CHECK_EQ(value, id == 0 ? 3.0f : 2.0f);
        }
      }
    });
  }
}

TEST(names_are_reserved_until_released) {
  RunRanks(2, {}, [&](Engine& engine, int) {
    float a = 1;
    float b = 1;
    const uint64_t handle =
        engine.Submit(Make(Collective::kAllreduce, "x", DType::kFloat32, {1}, &a, &a)).value();
    CHECK(engine.Wait(handle, NowNs() + 60 * kSecond).ok());
    auto again = engine.Submit(Make(Collective::kAllreduce, "x", DType::kFloat32, {1}, &b, &b));
    CHECK(!again.ok());
    CHECK(again.error().kind == ErrorKind::kInvalid);
    engine.Release(handle);
    CHECK(
        WaitAndRelease(
            engine,
            engine.Submit(Make(Collective::kAllreduce, "x", DType::kFloat32, {1}, &b, &b)).value())
            .ok());
  });
}

TEST(unnamed_calls_outnumber_their_ids) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, controller, [&](Engine& engine, int rank) {
      constexpr int kCalls = 2 * kUnnamedIds + 100;
      std::vector<int32_t> data(kCalls, rank);
      std::vector<uint64_t> handles;
      for (int k = 0; k < kCalls; ++k) {
        handles.push_back(
            engine.Submit(Make(Collective::kAllreduce, "", DType::kInt32, {1}, &data[k], &data[k]))
                .value());
      }
      for (int k = 0; k < kCalls; ++k) {
        CHECK(WaitAndRelease(engine, handles[k]).ok());
        CHECK_EQ(data[k], 1);
      }
    });
  }
}

TEST(names_outnumber_their_ids) {
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    for (uint32_t k = 0; k < kNamedIds + 500; ++k) {
      int32_t value = rank;
      CHECK(WaitAndRelease(engine, engine
                                       .Submit(Make(Collective::kAllreduce, "n" + std::to_string(k),
                                                    DType::kInt32, {1}, &value, &value))
                                       .value())
                .ok());
      CHECK_EQ(value, 1);
    }
  });
}

// The id that rank 0 remembers for "n0" has gone to "new", which is in flight there: "n0" must not
// wait behind it, since rank 1 submits "new" only afterwards.
TEST(a_name_does_not_wait_for_the_one_that_has_its_id_now) {
  std::latch taken(1);
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    int32_t value = rank;
    int32_t other = rank;
    const auto submit = [&](const std::string& name, int32_t* data) {
      return engine.Submit(Make(Collective::kAllreduce, name, DType::kInt32, {1}, data, data))
          .value();
    };
    for (uint32_t k = 0; k < kNamedIds; ++k) {
      value = rank;
      CHECK(WaitAndRelease(engine, submit("n" + std::to_string(k), &value)).ok());
    }
    uint64_t first = 0;
    if (rank == 0) {
      first = submit("new", &other);
      taken.count_down();
    } else {
      taken.wait();
    }
    value = rank;
    const uint64_t again = submit("n0", &value);
    CHECK(engine.Find(again)->id != 0);
    CHECK(WaitAndRelease(engine, again).ok());
    CHECK_EQ(value, 1);
    if (rank == 1) first = submit("new", &other);
    CHECK_EQ(engine.Find(first)->id, 0);
    CHECK(WaitAndRelease(engine, first).ok());
    CHECK_EQ(other, 1);
  });
}

}  // namespace
}  // namespace horoacc::testing
