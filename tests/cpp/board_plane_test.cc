// The plane inside a host, rank by rank: what may run, what is split, who is woken.
#include "negotiate/board_plane.h"

#include <string>
#include <vector>

#include "boards.h"

namespace horoacc::testing {
namespace {

using Ran = std::vector<std::vector<std::string>>;

const Error kUnwanted = MakeError(ErrorKind::kMismatch, "unwanted", 1);

Settings Unfused() {
  Settings settings;
  settings.fusion_threshold = 0;
  return settings;
}

void Fuse(Boards& boards, const std::vector<std::string>& names) {
  for (int step = 0; step < 2; ++step) {
    for (const std::string& name : names) boards.AnnounceEverywhere(name);
    (void)boards.CarryOut();
  }
}

Decision Carry(Boards& boards, int rank) {
  auto next = boards[rank].plane->Next();
  CHECK(next.ok());
  CHECK(next.value().has_value());
  CHECK(boards[rank].plane->Finish(*next.value()).ok());
  return *next.value();
}

TEST(an_error_names_the_call_that_it_ends) {
  Boards boards(2);
  const SetBoard::NamedId id = boards.Lookup("x");
  const TensorKey key = boards.WriteRow(0, id.id);
  CHECK(boards.Announce(0, id).ok());
  CHECK(boards[1].plane->Reject(key, kUnwanted).ok());
  CHECK(boards[1].plane->Reject(key, kUnwanted).ok());  // over already
  // The other rank comes later: its call is the next one.
  CHECK(boards.Announce(1, id).ok());
  for (int rank = 0; rank < 2; ++rank) {
    const Decision decision = Carry(boards, rank);
    CHECK(decision.kind == Decision::Kind::kError);
    CHECK_EQ(decision.text, "unwanted");
    CHECK(decision.ids == std::vector<uint32_t>{key.id});
    CHECK(decision.generations == std::vector<uint64_t>{key.generation});
  }
  CHECK(boards.Announce(0, id).ok());
  CHECK(boards.CarryOut() == Ran{{"x"}});
}

// A rank that has left may have freed its memory: what the plan lets go afterwards does not run.
TEST(nothing_runs_after_a_rank_has_left) {
  Boards boards(2);
  Fuse(boards, {"a", "b"});
  boards.AnnounceEverywhere("a");
  CHECK(boards.CarryOut().empty());
  boards.board().header().end.store(SetEnd::Left(1));
  const uint32_t a = boards.Lookup("a").id;
  CHECK(boards[0].plane->Unblock({&a, 1}).ok());
  for (int rank = 0; rank < 2; ++rank) {
    const Decision decision = Carry(boards, rank);
    CHECK(decision.kind == Decision::Kind::kError);
    CHECK(decision.error == ErrorKind::kAborted);
    CHECK_EQ(decision.culprit, 1);
    CHECK(decision.ids == std::vector<uint32_t>{a});
  }
}

// A decision that is in the log, but not carried out, is no reason to split the next round.
TEST(a_decided_bucket_is_not_split) {
  Boards boards(2);
  Fuse(boards, {"a", "b"});
  for (const char* name : {"a", "b"}) boards.AnnounceEverywhere(name);
  const uint32_t a = boards.Lookup("a").id;
  CHECK(boards[0].plane->Unblock({&a, 1}).ok());  // "b" is complete, "a" still runs
  CHECK(boards.CarryOut() == (Ran{{"a", "b"}}));
  boards.AnnounceEverywhere("a");
  CHECK(boards.CarryOut().empty());
  boards.AnnounceEverywhere("b");
  CHECK(boards.CarryOut() == (Ran{{"a", "b"}}));
}

TEST(a_blocked_rank_gets_what_is_ready) {
  Boards boards(2);
  Fuse(boards, {"a", "b"});
  boards.AnnounceEverywhere("b");
  CHECK(boards.CarryOut().empty());
  const uint32_t b = boards.Lookup("b").id;
  CHECK(boards[1].plane->Unblock({&b, 1}).ok());
  CHECK(boards.CarryOut() == Ran{{"b"}});
}

// More calls than execution slots, and nobody carries anything out.
void Starve(Boards& boards) {
  for (uint32_t k = 0; k < 2 * kExecSlots; ++k) boards.AnnounceEverywhere("t" + std::to_string(k));
  CHECK_EQ(boards.board().header().starved.load(), 1);
}

// Everybody is woken once. If each look at the backlog rang, each ring would bring a look.
TEST(looking_at_the_backlog_wakes_nobody) {
  Boards boards(3, Unfused());
  Starve(boards);
  const Bell& bell = boards[0].bells.bell(2);
  const uint32_t before = bell.count.load();
  for (int turn = 0; turn < 10; ++turn) CHECK(boards[turn % 2].plane->Pump().ok());
  CHECK_EQ(bell.count.load(), before);
  // Who finishes makes room, and decides what waited for it.
  size_t ran = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto next = boards[rank].plane->Next();
      CHECK(next.ok());
      if (!next.value()) continue;
      ran += next.value()->ids.size();
      CHECK(boards[rank].plane->Finish(*next.value()).ok());
    }
  }
  CHECK_EQ(ran, 3 * 2 * kExecSlots);
  CHECK_EQ(boards.board().header().starved.load(), 0);
}

// An error may let a bucket go, and that needs room: it waits, and so does the call.
TEST(a_rejection_waits_for_room) {
  Boards boards(2, Unfused());
  const SetBoard::NamedId id = boards.Lookup("x");
  const TensorKey key = boards.WriteRow(0, id.id);
  CHECK(boards.Announce(0, id).ok());
  Starve(boards);
  CHECK(boards[1].plane->Reject(key, kUnwanted).ok());
  CHECK_EQ(boards.board().id(id.id).arrivals.load().arrived(), 1);
  bool rejected = false;
  for (int turn = 0; turn < 1000 && !rejected; ++turn) {
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(boards[rank].plane->Pump().ok());
      const auto next = boards[rank].plane->Next();
      CHECK(next.ok());
      if (!next.value()) continue;
      rejected = rejected || next.value()->kind == Decision::Kind::kError;
      CHECK(boards[rank].plane->Finish(*next.value()).ok());
    }
  }
  CHECK(rejected);
  CHECK_EQ(boards.board().id(id.id).arrivals.load().arrived(), 0);
}

// A slow rank may still read what its peers published for the call before the one that was closed.
TEST(rows_that_may_still_be_read_are_left_alone) {
  Boards boards(2);
  const SetBoard::NamedId id = boards.Lookup("x");
  boards.AnnounceEverywhere("x");  // decided; rank 1 has yet to carry it out
  const TensorKey before = {id.id, boards.board().id(id.id).arrivals.load().over()};
  const TensorKey closed = boards.WriteRow(0, id.id);
  CHECK(boards.Announce(0, id).ok());
  CHECK(boards[0].plane->Reject(closed, kUnwanted).ok());
  const TensorKey next = boards.WriteRow(0, id.id);
  CHECK(&boards.board().row(0, id.id, next.generation) !=
        &boards.board().row(0, id.id, before.generation));
  CHECK_EQ(boards.board().row(0, id.id, before.generation).generation.load(), before.generation);
}

}  // namespace
}  // namespace horoacc::testing
