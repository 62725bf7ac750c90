// The message controller, message by message: late, overtaken, or without a receiver.
#include "negotiate/tree/tree_controller.h"

#include <algorithm>
#include <string>
#include <vector>

#include "support/trees.h"

namespace horoacc::testing {
namespace {

using Ran = std::vector<std::vector<std::string>>;

const Error kUnwanted = MakeError(ErrorKind::kMismatch, "unwanted", 1);

Settings Unfused() {
  Settings settings;
  settings.fusion_threshold = 0;
  return settings;
}

uint64_t OpenGeneration(Trees& trees, const std::string& name) {
  return trees.controls().control().id(trees.IdOf(name)).arrivals.load().open();
}

/// Makes one bucket of the names.
void Fuse(Trees& trees, const std::vector<std::string>& names) {
  for (int step = 0; step < 2; ++step) {
    for (const std::string& name : names) trees.AnnounceEverywhere(name);
    (void)trees.CarryOut();
  }
}

void CheckRejected(const Decision& decision, TensorKey key) {
  CHECK(decision.kind == Decision::Kind::kError);
  CHECK(decision.error.kind == ErrorKind::kMismatch);
  CHECK(decision.ids == std::vector<uint32_t>{key.id});
  CHECK(decision.generations == std::vector<uint64_t>{key.generation});
}

// A rank that had not submitted the rejected call submits the next one before it hears of it.
TEST(a_rejection_does_not_end_the_call_that_overtakes_it) {
  Trees trees(3);
  const TensorKey rejected{trees.IdOf("x"), OpenGeneration(trees, "x")};
  for (const int rank : {0, 1}) CHECK(trees.Announce(rank, "x").ok());
  CHECK(trees.controller(0).Reject(rejected, kUnwanted).ok());
  CHECK(trees.Announce(2, "x").ok());
  trees.Deliver();
  for (int rank = 0; rank < 3; ++rank) CheckRejected(trees.Carry(rank), rejected);
  for (const int rank : {0, 1}) CHECK(trees.Announce(rank, "x").ok());
  trees.Deliver();
  CHECK(trees.CarryOut() == Ran{{"x"}});
}

// The same at a rank between the root and a leaf: it has a part of the rejected call together.
TEST(branches_of_two_calls_are_not_mixed) {
  Trees trees(6);  // rank 1 is rank 5's parent
  const TensorKey rejected{trees.IdOf("x"), OpenGeneration(trees, "x")};
  CHECK(trees.Announce(1, "x").ok());
  CHECK(trees.controller(0).Reject(rejected, kUnwanted).ok());
  const auto rejection = std::exchange(trees.tap(0).sent, {});
  CHECK(trees.Announce(5, "x").ok());
  trees.Deliver(5);
  CHECK(trees.tap(1).sent.empty());  // two branches, but of two calls
  trees.Deliver(0, rejection);
  trees.Deliver();
  for (int rank = 0; rank < 6; ++rank) CheckRejected(trees.Carry(rank), rejected);
  for (int rank = 0; rank < 5; ++rank) CHECK(trees.Announce(rank, "x").ok());
  trees.Deliver();
  CHECK(trees.CarryOut() == Ran{{"x"}});
}

// News of the rejected call that arrives after its rejection.
TEST(a_late_message_for_a_rejected_call_is_dropped) {
  Trees trees(6);
  const TensorKey rejected{trees.IdOf("x"), OpenGeneration(trees, "x")};
  CHECK(trees.Announce(5, "x").ok());
  const auto late = std::exchange(trees.tap(5).sent, {});
  CHECK(trees.controller(2).Reject(rejected, kUnwanted).ok());
  trees.Deliver();
  for (int rank = 0; rank < 6; ++rank) CheckRejected(trees.Carry(rank), rejected);
  trees.Deliver(5, late);
  for (int rank = 0; rank < 6; ++rank) CHECK(trees.Announce(rank, "x").ok());
  trees.Deliver();
  CHECK(trees.CarryOut() == Ran{{"x"}});
}

// A name comes back under another id, whose generations are lower than the one that was rejected
// under the old id.
TEST(a_rejection_does_not_outlive_the_id) {
  Trees trees(2, Unfused());
  for (int call = 0; call < 3; ++call) {
    trees.AnnounceEverywhere("x");
    (void)trees.CarryOut();
  }
  const TensorKey rejected{trees.IdOf("x"), OpenGeneration(trees, "x")};
  CHECK(trees.Announce(0, "x").ok());
  CHECK(trees.controller(0).Reject(rejected, kUnwanted).ok());
  trees.Deliver();
  for (int rank = 0; rank < 2; ++rank) CheckRejected(trees.Carry(rank), rejected);
  for (uint32_t k = 0; trees.controls().control().header().ids < kNamedIds; ++k) {
    trees.AnnounceEverywhere("more." + std::to_string(k));
    (void)trees.CarryOut();
  }
  trees.AnnounceEverywhere("new");  // takes the id that has rested longest
  (void)trees.CarryOut();
  CHECK_EQ(trees.IdOf("new"), rejected.id);
  CHECK(trees.IdOf("x") != rejected.id);
  CHECK(OpenGeneration(trees, "x") < rejected.generation);
  trees.AnnounceEverywhere("x");
  CHECK(trees.CarryOut() == Ran{{"x"}});
}

// Ready on the control segment, but the news is still climbing: the id does not rest.
TEST(an_id_is_not_recycled_before_the_root_has_decided) {
  Trees trees(2, Unfused());
  trees.AnnounceEverywhere("x");
  (void)trees.CarryOut();
  const uint32_t id = trees.IdOf("x");
  for (const int rank : {0, 1}) CHECK(trees.Announce(rank, "x").ok());
  auto late = std::exchange(trees.tap(1).sent, {});
  for (uint32_t k = 0; trees.controls().control().header().ids < kNamedIds; ++k) {
    trees.AnnounceEverywhere("more." + std::to_string(k));
    (void)trees.CarryOut();
  }
  for (int k = 0; k < 3; ++k) {
    trees.AnnounceEverywhere("new." + std::to_string(k));
    (void)trees.CarryOut();
  }
  CHECK_EQ(trees.IdOf("x"), id);
  trees.Deliver(1, std::move(late));
  trees.Deliver();
  CHECK(trees.CarryOut() == Ran{{"x"}});
}

// Once it is decided it does, also if the root itself has no part in the call that was rejected.
TEST(a_rejected_id_rests_from_then_on) {
  Trees trees(2, Unfused());
  trees.AnnounceEverywhere("x");
  (void)trees.CarryOut();
  const TensorKey rejected{trees.IdOf("x"), OpenGeneration(trees, "x")};
  const uint64_t before = trees.controls().control().id(rejected.id).last_decision.load();
  CHECK(trees.Announce(1, "x").ok());
  CHECK(trees.controller(1).Reject(rejected, kUnwanted).ok());
  trees.Deliver();
  for (int rank = 0; rank < 2; ++rank) CheckRejected(trees.Carry(rank), rejected);
  CHECK_EQ(trees.controls().control().id(rejected.id).last_decision.load(), before + 1);
}

// A rank that has left may have freed its memory: what the plan lets go afterwards does not run.
TEST(nothing_runs_after_a_rank_has_left) {
  Trees trees(2);
  Fuse(trees, {"a", "b"});
  trees.AnnounceEverywhere("a");
  CHECK(trees.CarryOut().empty());
  trees.controls().control().header().end.store(SetEnd::Left(1));
  CHECK(trees.controller(0).Unblock({}).ok());
  trees.Deliver();
  for (int rank = 0; rank < 2; ++rank) {
    const Decision decision = trees.Carry(rank);
    CHECK(decision.kind == Decision::Kind::kError);
    CHECK(decision.error.kind == ErrorKind::kAborted);
    CHECK_EQ(decision.error.culprit, 1);
    CHECK(decision.ids == std::vector<uint32_t>{trees.IdOf("a")});
  }
}

// A decision that was taken, but not carried out, is no reason to split the bucket's next round.
TEST(a_decided_bucket_is_not_split) {
  for (const int asking : {0, 1}) {
    Trees trees(2);
    Fuse(trees, {"a", "b"});
    const uint32_t a = trees.IdOf("a");
    for (const char* name : {"a", "b"}) trees.AnnounceEverywhere(name);
    CHECK(trees.controller(asking).Unblock({&a, 1}).ok());  // "b" is complete, "a" still runs
    trees.Deliver();
    CHECK(trees.CarryOut() == (Ran{{"a", "b"}}));
    trees.AnnounceEverywhere("a");
    CHECK(trees.CarryOut().empty());
    trees.AnnounceEverywhere("b");
    CHECK(trees.CarryOut() == (Ran{{"a", "b"}}));
  }
}

// A rank says that it is blocked, and the bucket runs before the root hears of it.
TEST(an_old_call_for_help_does_not_split_the_next_round) {
  Trees trees(2);
  Fuse(trees, {"a", "b"});
  trees.AnnounceEverywhere("a");
  CHECK(trees.controller(1).Unblock({}).ok());
  const auto late = std::exchange(trees.tap(1).sent, {});
  CHECK_EQ(late.size(), 1);
  trees.AnnounceEverywhere("b");
  CHECK(trees.CarryOut() == (Ran{{"a", "b"}}));
  trees.Deliver(1, late);
  trees.AnnounceEverywhere("a");
  CHECK(trees.CarryOut().empty());
  trees.Deliver(1, late);
  CHECK(trees.CarryOut().empty());
  trees.AnnounceEverywhere("b");
  CHECK(trees.CarryOut() == (Ran{{"a", "b"}}));
}

TEST(a_blocked_rank_gets_what_is_ready) {
  Trees trees(2);
  Fuse(trees, {"a", "b"});
  trees.AnnounceEverywhere("b");
  CHECK(trees.CarryOut().empty());
  CHECK(trees.controller(1).Unblock({}).ok());
  trees.Deliver();
  CHECK(trees.CarryOut() == Ran{{"b"}});
}

// A member leaves the model: the others hear of it, and whoever has all of the rest asks for
// nothing.
TEST(ranks_know_the_members_that_a_bucket_has_left) {
  Trees trees(2);
  Fuse(trees, {"a", "b", "c"});
  for (int step = 0; step < 3; ++step) {
    for (const char* name : {"a", "b"}) trees.AnnounceEverywhere(name);
    if (step == 0) CHECK(trees.controller(1).Unblock({}).ok());
    trees.Deliver();
    CHECK(trees.CarryOut() == (Ran{{"a", "b"}}));
  }
  for (const int rank : {1, 0}) CHECK(trees.Announce(rank, "a").ok());
  CHECK(trees.Announce(1, "b").ok());
  trees.Deliver();
  CHECK(trees.controller(1).Unblock({}).ok());
  CHECK(trees.tap(1).sent.empty());
  CHECK(trees.Announce(0, "b").ok());
  trees.Deliver();
  CHECK(trees.CarryOut() == (Ran{{"a", "b"}}));
}

// The last missing member of a bucket loses its id to another name: the others need not wait.
TEST(a_bucket_whose_missing_member_is_forgotten_runs) {
  Trees trees(2);
  Fuse(trees, {"mate", "waits"});
  trees.AnnounceEverywhere("waits");
  CHECK(trees.CarryOut().empty());
  const uint32_t mate = trees.IdOf("mate");
  for (uint32_t k = 0; trees.controls().control().header().ids < kNamedIds; ++k) {
    trees.AnnounceEverywhere("more." + std::to_string(k));
    (void)trees.CarryOut();
  }
  trees.AnnounceEverywhere("new");
  CHECK_EQ(trees.IdOf("new"), mate);
  CHECK(trees.CarryOut() == (Ran{{"waits"}, {"new"}}));
}

// The root arrives last, and what it decides is done at once: its own callback must not wait.
TEST(a_callback_of_the_root_wakes_its_coordinator) {
  for (const bool notify : {false, true}) {
    Trees trees(2);
    const SetSegment::NamedId id = trees.controls().Lookup("x");
    Request barrier;
    barrier.collective = Collective::kBarrier;
    for (const int rank : {1, 0}) {
      const TensorKey key = trees.controls().WriteRow(rank, id.id);
      Row& row = trees.controls().control().row(static_cast<uint32_t>(rank), id.id, key.generation);
      row.collective = static_cast<uint8_t>(Collective::kBarrier);
      row.tensors = 0;
      row.notify = notify && rank == 0 ? 1 : 0;
      const Doorbell& doorbell = trees.controls()[0].doorbells.doorbell(0);
      const uint32_t before = doorbell.coordinator_word.load();
      CHECK(
          trees.controller(rank).Announce({key.id, key.generation, id.id_version, &barrier}).ok());
      trees.Deliver();
      if (rank == 0) CHECK_EQ(doorbell.coordinator_word.load() - before, notify ? 1 : 0);
    }
    CHECK(trees.Carry(0).done());
  }
}

}  // namespace
}  // namespace horoacc::testing
