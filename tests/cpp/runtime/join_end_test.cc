// What ends a join, and what a rank that has joined may do until then.
#include <latch>
#include <thread>

#include "support/join_calls.h"

namespace horoacc::testing {
namespace {

TEST(a_rank_that_has_joined_submits_nothing) {
  for (const Pairs& controller : kControllers) {
    std::latch tried(1);
    RunRanks(2, controller, [&](Engine& engine, int rank) {
      Numbers numbers(engine, 4, false);
      if (rank == 1) tried.wait();
      const uint64_t join = BeginJoin(engine);
      if (rank == 0) {
        const auto refused = engine.Submit(Reduction("t", numbers));
        CHECK(!refused.ok());
        CHECK(refused.error().kind == ErrorKind::kInvalid);
        CHECK(engine.Wait(join, NowNs() + kMillisecond).error().kind == ErrorKind::kTimeout);
        // Joining again is to wait for the same.
        const uint64_t again = BeginJoin(engine);
        tried.count_down();
        CHECK_EQ(EndJoin(engine, again), 1);
      }
      CHECK_EQ(EndJoin(engine, join), 1);
    });
  }
}

// A cancelled caller comes back when the join is over: the other ranks do not join again.
TEST(a_join_whose_result_nobody_took_is_the_next_one) {
  for (const Pairs& controller : kControllers) {
    RunRanks(2, controller, [&](Engine& engine, int rank) {
      Numbers numbers(engine, 4, false);
      for (const bool returns : {true, false}) {
        const uint64_t join = BeginJoin(engine);
        if (rank == 1) (void)EndJoin(engine, join);
        while (rank == 0 && !engine.Poll(join).value()) std::this_thread::yield();
        if (rank == 0) engine.Release(join);
        if (rank == 0 && returns) {
          const uint64_t again = BeginJoin(engine);
          CHECK(engine.Poll(again).value());
          const int last = EndJoin(engine, again);
          CHECK(last == 0 || last == 1);
        }
        numbers.Fill(1);
        Finish(engine, Submit(engine, Reduction("t", numbers)));
        numbers.Expect(2);
      }
      // What nobody took is forgotten by then.
      (void)EndJoin(engine, BeginJoin(engine));
    });
  }
}

TEST(each_process_set_is_joined_by_itself) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      const uint32_t pair = engine.AddProcessSet({0, 2}).value();
      Numbers numbers(engine, 4, false);
      const uint64_t join = rank == 2 ? BeginJoin(engine) : 0;
      if (rank != 1) {
        numbers.Fill(rank + 1);
        Submission call = Reduction("t", numbers);
        call.process_set = pair;
        Finish(engine, Submit(engine, std::move(call)));
        numbers.Expect(4);
        const int last = EndJoin(engine, BeginJoin(engine, pair));
        CHECK(last == 0 || last == 2);
      }
      (void)EndJoin(engine, rank == 2 ? join : BeginJoin(engine));
      CHECK(engine.RemoveProcessSet(pair).ok());
    });
  }
}

TEST(a_rank_that_leaves_ends_the_joins_of_the_others) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      if (rank == 2) {
        CHECK(engine.Shutdown().ok());
        return;
      }
      const uint64_t join = BeginJoin(engine);
      const Status outcome = WaitAndRelease(engine, join);
      CHECK(!outcome.ok());
      CHECK(outcome.error().kind == ErrorKind::kAborted);
      CHECK_EQ(outcome.error().culprit, 2);
    });
  }
}

// Who gave up gets the ranks that have not joined; the set ends for them, too.
TEST(a_join_is_given_up) {
  for (const Pairs& controller : kControllers) {
    std::latch over(1);
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      if (rank == 2) {
        over.wait();
        Numbers numbers(engine, 4, false);
        const auto late = engine.Submit(Reduction("t", numbers));
        const Status outcome = late.ok() ? WaitAndRelease(engine, late.value()) : late.error();
        CHECK(outcome.error().kind == ErrorKind::kAborted);
        CHECK_EQ(outcome.error().message, "the group has ended: rank 0 gave up waiting in it");
        CHECK_EQ(outcome.error().culprit, 0);
        return;
      }
      const uint64_t join = BeginJoin(engine, 0, rank == 0 ? 0.5 : 0);
      const Status outcome = WaitAndRelease(engine, join);
      CHECK(!outcome.ok());
      if (rank == 0) {
        CHECK(outcome.error().kind == ErrorKind::kTimeout);
        CHECK_EQ(outcome.error().message,
                 "tensor 'join' was not complete within 0.5 s: waiting for rank(s) 2");
        CHECK_EQ(outcome.error().culprit, 2);
        over.count_down();
      } else {
        CHECK(outcome.error().kind == ErrorKind::kAborted);
        CHECK_EQ(outcome.error().culprit, 0);
      }
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
