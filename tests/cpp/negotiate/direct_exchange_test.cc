// Small allreduces between two hosts: both reduce what the two messages carry, and whatever differs
// goes to the root.
#include "negotiate/multi_host/direct_exchange.h"

#include "negotiate/multi_host/eager.h"
#include "negotiate/multi_host/subtree_aggregator.h"
#include "support/multi_host_views.h"
#include "support/still_clock.h"

namespace horoacc::testing {
namespace {

constexpr auto kExchange = static_cast<std::byte>(MultiHostMessage::kExchange);
constexpr auto kReady = static_cast<std::byte>(MultiHostMessage::kReady);
constexpr auto kDecision = static_cast<std::byte>(MultiHostMessage::kDecision);

/// The kinds of messages, in the order in which they were sent.
std::vector<std::byte> KindsOf(const std::vector<std::pair<int, ControlMessage>>& carried) {
  std::vector<std::byte> kinds;
  for (const auto& [receiver, message] : carried) kinds.push_back(message.bytes[sizeof(uint32_t)]);
  return kinds;
}

/// Every rank submits `name`, in this order; what was sent.
std::vector<std::byte> Step(MultiHostViews& ranks, const std::vector<int>& order,
                            const std::string& name) {
  for (const int rank : order) CHECK(ranks.Announce(rank, name, Collective::kAllreduce).ok());
  return KindsOf(ranks.Deliver());
}

/// All ranks carry out one decision, a sum of four times 1, 2, 3, 4.
void CheckSums(MultiHostViews& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const std::optional<Decision> decision = ranks.Carry(rank);
    CHECK(decision.has_value());
    CHECK(decision->path == Path::kEager);
    std::vector<float> sums(4);
    std::byte* const output = reinterpret_cast<std::byte*>(sums.data());
    UnpackTensors(SegmentRank::FourNumbers(), decision->facts.at(0).result, {&output, 1});
    CHECK(sums == (std::vector<float>{4, 8, 12, 16}));
    CHECK(!ranks.Carry(rank));
  }
}

TEST(a_call_that_has_run_before_takes_one_message_each_way) {
  for (const std::vector<int>& order :
       {std::vector{0, 1, 2, 3}, std::vector{3, 2, 1, 0}, std::vector{0, 2, 1, 3}}) {
    MultiHostViews ranks({2, 2});
    const auto cold = Step(ranks, order, "a");
    CHECK(std::ranges::find(cold, kExchange) == cold.end());
    CHECK(std::ranges::find(cold, kDecision) != cold.end());
    CheckSums(ranks);
    for (int step = 0; step < 3; ++step) {
      auto warm = Step(ranks, order, "a");
      std::ranges::sort(warm);
      CHECK(warm == (std::vector{kReady, kExchange}));
      CheckSums(ranks);
    }
  }
}

TEST(barriers_and_unnamed_calls_take_one_message_each_way_from_the_first_on) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kBarrier}) {
    MultiHostViews ranks({2, 2});
    for (uint64_t number = 0; number < 3; ++number) {
      for (const int rank : {3, 0, 2, 1})
        CHECK(ranks.AnnounceUnnamed(rank, number, collective).ok());
      auto sent = KindsOf(ranks.Deliver());
      std::ranges::sort(sent);
      CHECK(sent == (std::vector{kReady, kExchange}));
      if (collective == Collective::kAllreduce) CheckSums(ranks);
      for (int rank = 0; rank < 4 && collective == Collective::kBarrier; ++rank) {
        const std::optional<Decision> decision = ranks.Carry(rank);
        CHECK(decision && decision->done() && decision->facts.at(0).result.empty());
        CHECK(!ranks.Carry(rank));
      }
    }
    // Host 0 makes another call: all ranks learn of it from the root.
    for (int rank = 0; rank < 4; ++rank)
      CHECK(ranks.AnnounceUnnamed(rank, 3, rank < 2 ? Collective::kBroadcast : collective).ok());
    (void)ranks.Deliver();
    for (int rank = 0; rank < 4; ++rank) {
      const std::optional<Decision> decision = ranks.Carry(rank);
      CHECK(decision && decision->kind == Decision::Kind::kError);
      CHECK(decision->error.kind == ErrorKind::kMismatch);
    }
  }
}

// The sum of aligned hosts travels, otherwise all inputs do.
TEST(a_host_sends_its_sum) {
  constexpr size_t kHead = sizeof(uint32_t) + 18;  // the set, and a call that is known
  constexpr size_t kInput = 3 * sizeof(uint32_t) + 4 * sizeof(float);
  const auto lengths = [](std::vector<int> hosts) {
    MultiHostViews ranks(std::move(hosts));
    std::vector<size_t> sent;
    for (int step = 0; step < 2; ++step) {
      for (int rank = 0; rank < ranks.size(); ++rank)
        CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
      sent.clear();
      for (const auto& [receiver, message] : ranks.Deliver()) sent.push_back(message.bytes.size());
      for (int rank = 0; rank < ranks.size(); ++rank) CHECK(ranks.Carry(rank).has_value());
    }
    std::ranges::sort(sent);
    return sent;
  };
  const auto with = [](size_t inputs) { return kHead + sizeof(uint32_t) + inputs * kInput; };
  CHECK(lengths({2, 2}) == (std::vector{with(1), with(1)}));
  CHECK(lengths({4, 4}) == (std::vector{with(1), with(1)}));
  CHECK(lengths({2, 1}) == (std::vector{with(1), with(2)}));
}

TEST(other_requests_and_partial_calls_are_the_roots) {
  MultiHostViews ranks({2, 2});
  for (int step = 0; step < 2; ++step) {
    (void)Step(ranks, {0, 1, 2, 3}, "a");
    CheckSums(ranks);
  }
  // One host asks for something else: both learn of the disagreement from the root.
  for (const int rank : {0, 1}) CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
  for (const int rank : {2, 3}) CHECK(ranks.Announce(rank, "a", Collective::kBroadcast).ok());
  (void)ranks.Deliver();
  for (int rank = 0; rank < 4; ++rank) {
    const std::optional<Decision> decision = ranks.Carry(rank);
    CHECK(decision && decision->kind == Decision::Kind::kError);
    CHECK(decision->error.kind == ErrorKind::kMismatch);
  }
  // After that the call runs as before.
  (void)Step(ranks, {0, 1, 2, 3}, "a");
  CheckSums(ranks);
  // A rank has joined: the others' call is partial, and no host decides it by itself.
  CHECK(ranks.controller(3).Join(0).ok());
  for (const int rank : {0, 1, 2}) CHECK(ranks.Announce(rank, "a", Collective::kAllreduce).ok());
  (void)ranks.Deliver();
  for (int rank = 0; rank < 4; ++rank) {
    const std::optional<Decision> decision = ranks.Carry(rank);
    CHECK(decision && decision->partial);
  }
}

// A direct call moves no decision of the root, but each wait for a part of a bucket is a new one.
TEST(a_bucket_of_calls_that_ran_directly_is_split_again) {
  MultiHostViews ranks({2, 2});
  const auto announce = [&](int rank, const char* name) {
    CHECK(ranks.Announce(rank, name, Collective::kAllreduce).ok());
  };
  const auto carry = [&] {
    for (int rank = 0; rank < ranks.size(); ++rank) CHECK(ranks.Carry(rank).has_value());
  };
  // The call goes through the root: rank 1 is late, and the news of rank 0 does not wait for it.
  const auto late = [&](const char* name) {
    for (const int rank : {0, 2, 3}) announce(rank, name);
    (void)ranks.Deliver();
    StillClock() += 2 * kSubtreeTimeout;
    (void)ranks.Deliver();
    announce(1, name);
    (void)ranks.Deliver();
  };
  const auto wait_for = [&](const char* name) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const uint32_t id = ranks[rank].control->Lookup(name).value().id;
      CHECK(ranks.controller(rank).Unblock({&id, 1}).ok());
    }
    (void)ranks.Deliver();
  };
  for (const char* const name : {"x", "y"}) {
    (void)Step(ranks, {0, 1, 2, 3}, name);
    carry();
  }
  late("x");  // the plan has a bucket of both from now on
  (void)Step(ranks, {0, 1, 2, 3}, "y");
  wait_for("x");
  wait_for("y");
  while (ranks.Carry(0)) {
  }
  for (const int rank : {1, 2, 3}) {
    while (ranks.Carry(rank)) {
    }
  }
  CHECK(ranks[0].control->id(ranks[0].control->Lookup("x").value().id).bucket.load() != 0);
  // Each rank but the last to submit waits.
  for (int last = 0; last < ranks.size(); ++last) {
    for (const char* const name : {"x", "y"}) {
      for (int rank = 0; rank < ranks.size(); ++rank) {
        if (rank != last) announce(rank, name);
      }
      wait_for(name);
      announce(last, name);
      (void)ranks.Deliver();
      carry();
    }
  }
  late("x");
  wait_for("x");
  carry();
}

}  // namespace
}  // namespace horoacc::testing
