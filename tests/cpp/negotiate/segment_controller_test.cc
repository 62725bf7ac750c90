// The controller inside a host, rank by rank: what may run, what is split, who is woken.
#include "negotiate/control_segment/segment_controller.h"

#include <string>
#include <vector>

#include "support/segment_views.h"

namespace horoacc::testing {
namespace {

using Ran = std::vector<std::vector<std::string>>;

const Error kUnwanted = MakeError(ErrorKind::kMismatch, "unwanted", 1);

Settings Unfused() {
  Settings settings;
  settings.fusion_threshold = 0;
  return settings;
}

void Fuse(SegmentViews& controls, const std::vector<std::string>& names) {
  for (int step = 0; step < 2; ++step) {
    for (const std::string& name : names) controls.AnnounceEverywhere(name);
    (void)controls.CarryOut();
  }
}

Decision Carry(SegmentViews& controls, int rank) {
  auto next = controls[rank].controller->Next();
  CHECK(next.ok());
  CHECK(next.value().has_value());
  CHECK(controls[rank].controller->Finish(*next.value()).ok());
  return *next.value();
}

TEST(an_error_names_the_call_that_it_ends) {
  SegmentViews controls(2);
  const SetSegment::NamedId id = controls.Lookup("x");
  const TensorKey key = controls.WriteRow(0, id.id);
  CHECK(controls.Announce(0, id).ok());
  CHECK(controls[1].controller->Reject(key, kUnwanted).ok());
  CHECK(controls[1].controller->Reject(key, kUnwanted).ok());  // over already
  // The other rank comes later: its call is the next one.
  CHECK(controls.Announce(1, id).ok());
  for (int rank = 0; rank < 2; ++rank) {
    const Decision decision = Carry(controls, rank);
    CHECK(decision.kind == Decision::Kind::kError);
    CHECK_EQ(decision.error.message, "unwanted");
    CHECK(decision.ids == std::vector<uint32_t>{key.id});
    CHECK(decision.generations == std::vector<uint64_t>{key.generation});
  }
  CHECK(controls.Announce(0, id).ok());
  CHECK(controls.CarryOut() == Ran{{"x"}});
}

// A rank that has left may have freed its memory: what the plan lets go afterwards does not run.
TEST(nothing_runs_after_a_rank_has_left) {
  SegmentViews controls(2);
  Fuse(controls, {"a", "b"});
  controls.AnnounceEverywhere("a");
  CHECK(controls.CarryOut().empty());
  controls.control().header().end.store(SetEnd::Left(1));
  const uint32_t a = controls.Lookup("a").id;
  CHECK(controls[0].controller->Unblock({&a, 1}).ok());
  for (int rank = 0; rank < 2; ++rank) {
    const Decision decision = Carry(controls, rank);
    CHECK(decision.kind == Decision::Kind::kError);
    CHECK(decision.error.kind == ErrorKind::kAborted);
    CHECK_EQ(decision.error.culprit, 1);
    CHECK(decision.ids == std::vector<uint32_t>{a});
  }
}

// A decision that is in the log, but not carried out, is no reason to split the next round.
TEST(a_decided_bucket_is_not_split) {
  SegmentViews controls(2);
  Fuse(controls, {"a", "b"});
  for (const char* name : {"a", "b"}) controls.AnnounceEverywhere(name);
  const uint32_t a = controls.Lookup("a").id;
  CHECK(controls[0].controller->Unblock({&a, 1}).ok());  // "b" is complete, "a" still runs
  CHECK(controls.CarryOut() == (Ran{{"a", "b"}}));
  controls.AnnounceEverywhere("a");
  CHECK(controls.CarryOut().empty());
  controls.AnnounceEverywhere("b");
  CHECK(controls.CarryOut() == (Ran{{"a", "b"}}));
}

TEST(a_blocked_rank_gets_what_is_ready) {
  SegmentViews controls(2);
  Fuse(controls, {"a", "b"});
  controls.AnnounceEverywhere("b");
  CHECK(controls.CarryOut().empty());
  const uint32_t b = controls.Lookup("b").id;
  CHECK(controls[1].controller->Unblock({&b, 1}).ok());
  CHECK(controls.CarryOut() == Ran{{"b"}});
}

// More calls than execution slots, and no rank carries anything out.
void Starve(SegmentViews& controls) {
  for (uint32_t k = 0; k < 2 * kExecSlots; ++k)
    controls.AnnounceEverywhere("t" + std::to_string(k));
  CHECK_EQ(controls.control().header().starved.load(), 1);
}

// Each rank is woken once. If each look at the backlog rang, each ring would bring a look.
TEST(looking_at_the_backlog_wakes_no_rank) {
  SegmentViews controls(3, Unfused());
  Starve(controls);
  const Doorbell& doorbell = controls[0].doorbells.doorbell(2);
  const uint32_t before = doorbell.count.load();
  for (int turn = 0; turn < 10; ++turn) CHECK(controls[turn % 2].controller->Pump().ok());
  CHECK_EQ(doorbell.count.load(), before);
  // Who finishes makes room, and decides what waited for it.
  size_t ran = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto next = controls[rank].controller->Next();
      CHECK(next.ok());
      if (!next.value()) continue;
      ran += next.value()->ids.size();
      CHECK(controls[rank].controller->Finish(*next.value()).ok());
    }
  }
  CHECK_EQ(ran, 3 * 2 * kExecSlots);
  CHECK_EQ(controls.control().header().starved.load(), 0);
}

// An error may let a bucket go, and that needs room: it waits, and so does the call.
TEST(a_rejection_waits_for_room) {
  SegmentViews controls(2, Unfused());
  const SetSegment::NamedId id = controls.Lookup("x");
  const TensorKey key = controls.WriteRow(0, id.id);
  CHECK(controls.Announce(0, id).ok());
  Starve(controls);
  CHECK(controls[1].controller->Reject(key, kUnwanted).ok());
  CHECK_EQ(controls.control().id(id.id).arrivals.load().arrived(), 1);
  bool rejected = false;
  for (int turn = 0; turn < 1000 && !rejected; ++turn) {
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(controls[rank].controller->Pump().ok());
      const auto next = controls[rank].controller->Next();
      CHECK(next.ok());
      if (!next.value()) continue;
      rejected = rejected || next.value()->kind == Decision::Kind::kError;
      CHECK(controls[rank].controller->Finish(*next.value()).ok());
    }
  }
  CHECK(rejected);
  CHECK_EQ(controls.control().id(id.id).arrivals.load().arrived(), 0);
}

// A slow rank may still read what its peers published for the call before the one that was closed.
TEST(rows_that_may_still_be_read_are_left_alone) {
  SegmentViews controls(2);
  const SetSegment::NamedId id = controls.Lookup("x");
  controls.AnnounceEverywhere("x");  // decided; rank 1 has yet to carry it out
  const TensorKey before = {id.id, controls.control().id(id.id).arrivals.load().over()};
  const TensorKey closed = controls.WriteRow(0, id.id);
  CHECK(controls.Announce(0, id).ok());
  CHECK(controls[0].controller->Reject(closed, kUnwanted).ok());
  const TensorKey next = controls.WriteRow(0, id.id);
  CHECK(&controls.control().row(0, id.id, next.generation) !=
        &controls.control().row(0, id.id, before.generation));
  CHECK_EQ(controls.control().row(0, id.id, before.generation).generation.load(),
           before.generation);
}

}  // namespace
}  // namespace horoacc::testing
