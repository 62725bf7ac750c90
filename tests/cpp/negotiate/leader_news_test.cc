// What a leader tells of the calls of its host's ranks: each counted arrival once, in whatever
// order it finds the rows and the outbox.
#include "support/multi_host_views.h"

namespace horoacc::testing {
namespace {

const std::vector<int> kHosts{2, 1};  // 0 leads the first and is the root, 2 the other

TEST(news_is_of_ranks_that_are_counted) {
  MultiHostViews ranks(kHosts);
  CHECK(ranks.Announce(2, "a", Collective::kAllreduce).ok());
  CHECK(ranks.Announce(1, "a", Collective::kAllreduce).ok());
  // Rank 0 has written its row, and is about to be counted.
  const auto id = ranks[0].control->Lookup("a");
  CHECK(id.ok());
  const TensorKey key = ranks[0].WriteRow(id.value().id);
  CHECK(ranks.controller(1).WhoHas(key).ok());
  (void)ranks.Deliver();
  CHECK(!ranks.Carry(1).has_value());
  CHECK(ranks.controller(0).Announce({key.id, key.generation, id.value().id_version}).ok());
  (void)ranks.Deliver();
  for (int rank = 0; rank < ranks.size(); ++rank) CHECK(ranks.Carry(rank).has_value());
}

TEST(what_is_decided_is_not_told_again) {
  MultiHostViews ranks(kHosts);
  CHECK(ranks.Announce(2, "a", Collective::kAllreduce).ok());
  (void)ranks.Deliver();
  CHECK(ranks.Announce(0, "a", Collective::kAllreduce).ok());
  CHECK(ranks.Announce(1, "a", Collective::kAllreduce).ok());
  // The question lies in the outbox behind what the leader decides.
  const auto id = ranks[1].control->Lookup("a");
  CHECK(id.ok());
  CHECK(ranks.controller(1).WhoHas(TensorKey{id.value().id, 1}).ok());
  (void)ranks.Deliver();
  for (int rank = 0; rank < ranks.size(); ++rank) CHECK(ranks.Carry(rank).has_value());
  CHECK(ranks.Announce(2, "a", Collective::kAllreduce).ok());
  (void)ranks.Deliver();
  for (int rank = 0; rank < ranks.size(); ++rank) CHECK(!ranks.Carry(rank).has_value());
}

// It may still read rows of the call before.
TEST(a_call_waits_for_a_joined_rank_that_lags) {
  MultiHostViews ranks(kHosts);
  for (int rank = 2; rank >= 0; --rank)
    CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
  (void)ranks.Deliver();
  for (const int rank : {0, 2}) CHECK(ranks.Carry(rank).has_value());
  CHECK(ranks.controller(1).Join(0).ok());
  for (const int rank : {2, 0}) CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
  const auto id = ranks[0].control->Lookup("a");
  CHECK(id.ok());
  CHECK(ranks.controller(0).WhoHas(TensorKey{id.value().id, 2}).ok());
  (void)ranks.Deliver();
  CHECK(!ranks.Carry(0).has_value());
  CHECK(ranks.Carry(1).has_value());
  (void)ranks.Deliver();
  for (int rank = 0; rank < ranks.size(); ++rank) CHECK(ranks.Carry(rank).has_value());
}

}  // namespace
}  // namespace horoacc::testing
