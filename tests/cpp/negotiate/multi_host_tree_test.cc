// News of calls climbs a tree of hosts: its shape, what a rank on the way holds back, the short
// numbers of calls, and how many messages a rank gets.
#include "negotiate/multi_host/multi_host_tree.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <climits>

#include "negotiate/multi_host/eager.h"
#include "negotiate/multi_host/multi_host_root.h"
#include "negotiate/multi_host/subtree_aggregator.h"
#include "support/host_ranks.h"
#include "support/multi_host_views.h"

namespace horoacc::testing {
namespace {

std::vector<int> Hosts(int hosts, int ranks) {
  std::vector<int> host_of;
  for (int host = 0; host < hosts; ++host) host_of.insert(host_of.end(), ranks, host);
  return host_of;
}

TEST(every_host_has_one_parent_and_few_children) {
  std::vector<int> mixed = Hosts(7, 3);
  std::ranges::rotate(mixed, mixed.begin() + 4);
  mixed.insert(mixed.begin() + 5, 90);
  for (const auto& host_of :
       {Hosts(1, 1), Hosts(1, 5), Hosts(4, 2), Hosts(9, 1), Hosts(40, 3), mixed}) {
    const auto members = static_cast<uint32_t>(host_of.size());
    std::vector<int> told(members);
    for (uint32_t me = 0; me < members; ++me) {
      const MultiHostTree tree = TreeOver(host_of, me);
      CHECK_EQ(tree.locals.front(), std::ranges::find(host_of, host_of[me]) - host_of.begin());
      for (const uint32_t local : tree.locals) CHECK_EQ(host_of[local], host_of[me]);
      CHECK_EQ(tree.locals.size(), std::ranges::count(host_of, host_of[me]));
      CHECK_EQ(tree.parent.has_value(), tree.locals.front() != 0);
      CHECK(tree.children.size() <= kFanOut);
      size_t below = tree.locals.size();
      for (const MultiHostTree::Child& child : tree.children) {
        if (me == tree.locals.front()) ++told[child.leader];
        const MultiHostTree childs = TreeOver(host_of, child.leader);
        CHECK_EQ(childs.locals.front(), child.leader);
        CHECK_EQ(*childs.parent, tree.locals.front());
        CHECK(childs.subtree == child.subtree);
        below += child.subtree.size();
      }
      CHECK_EQ(tree.subtree.size(), below);
      if (!tree.parent) CHECK_EQ(below, members);
    }
    for (uint32_t me = 1; me < members; ++me)
      CHECK_EQ(told[me], TreeOver(host_of, me).locals.front() == me ? 1 : 0);
  }
}

Request Vector(int64_t elements) {
  Request request;
  request.tensors = {{DType::kFloat32, {elements}}};
  return request;
}

ReadySet Of(const std::vector<uint32_t>& members, const Request& request) {
  ReadySet ready_set;
  CHECK(ready_set.Add(std::make_shared<const Request>(request), members));
  return ready_set;
}

const CallName kOne{true, "one", 0};
const CallName kTwo{true, "two", 0};

TEST(a_subtree_tells_of_a_call_once_all_of_it_have_it) {
  SubtreeAggregator aggregator({2, 3, 8}, 100);
  CHECK(!aggregator.Arrive(kOne, Of({3}, Vector(4)), 0).news);
  CHECK(!aggregator.Arrive(kOne, Of({2}, Vector(4)), 0).news);
  CHECK(aggregator.Holds());
  CHECK(!aggregator.Arrive(kOne, Of({3}, Vector(4)), 0).fits);
  const auto last = aggregator.Arrive(kOne, Of({8}, Vector(4)), 0);
  CHECK(last.news->whole);
  CHECK_EQ(last.news->ready_set.count(), 3);
  CHECK(!aggregator.Holds());
  // The next round, in which they differ.
  CHECK(!aggregator.Arrive(kOne, Of({2, 8}, Vector(4)), 0).news);
  const auto differ = aggregator.Arrive(kOne, Of({3}, Vector(5)), 0);
  CHECK(!differ.news->whole);
  CHECK_EQ(differ.news->ready_set.groups().size(), 2);
}

TEST(a_call_that_waits_for_long_goes_up_and_the_rest_at_once) {
  SubtreeAggregator aggregator({2, 3, 8}, 100);
  (void)aggregator.Arrive(kOne, Of({3}, Vector(4)), 1000);
  CHECK(aggregator.FlushOld(1099).empty());
  const auto old = aggregator.FlushOld(1100);
  CHECK_EQ(old.size(), 1);
  CHECK(!old[0].whole);
  CHECK(!aggregator.Holds());
  CHECK(aggregator.FlushOld(5000).empty());
  CHECK(!aggregator.Arrive(kOne, Of({3}, Vector(4)), 1200).fits);
  CHECK_EQ(aggregator.Arrive(kOne, Of({2}, Vector(4)), 1200).news->ready_set.count(), 1);
  const auto last = aggregator.Arrive(kOne, Of({8}, Vector(4)), 1300);
  CHECK(!last.news->whole);
  CHECK(!aggregator.Flush(kOne));
  CHECK(!aggregator.Arrive(kOne, Of({3}, Vector(4)), 1400).news);
  aggregator.Forget(kOne);
  CHECK(!aggregator.Flush(kOne));
}

TEST(a_subtree_does_not_wait_for_ranks_that_have_joined) {
  SubtreeAggregator aggregator({2, 3, 8}, 100);
  (void)aggregator.Arrive(kOne, Of({3}, Vector(4)), 0);
  (void)aggregator.Arrive(kTwo, Of({2, 3}, Vector(4)), 0);
  const auto completed = aggregator.Join(8);
  CHECK_EQ(completed.size(), 1);
  CHECK(completed[0].call == kTwo);
  CHECK(!completed[0].whole);
  CHECK_EQ(aggregator.Arrive(kOne, Of({2}, Vector(4)), 0).news->ready_set.count(), 2);
  aggregator.EndJoin();
  CHECK(!aggregator.Arrive(kOne, Of({2, 3}, Vector(4)), 0).news);
}

TEST(a_call_that_has_run_is_told_of_in_eighteen_bytes) {
  CallNumbers numbers;
  const auto request = std::make_shared<const Request>(Vector(4));
  const auto told = [&](const Request& now, bool whole) {
    WireWriter writer;
    writer.Put(uint8_t{1});
    PutReady(writer, kOne, Of({2, 3}, now), whole, 7, numbers);
    return std::vector<std::byte>(writer.bytes().begin(), writer.bytes().end());
  };
  const auto heard = [&](std::span<const std::byte> bytes, std::vector<uint32_t> subtree) {
    WireReader reader(bytes.subspan(1));
    ReadyNews news = GetReady(reader, subtree, numbers);
    return std::pair(reader.ok() && reader.at_end(), std::move(news));
  };
  CHECK(told(*request, true).size() > 18);
  numbers.Ran(kOne, request);
  CHECK_EQ(told(*request, true).size(), 18);
  CHECK(told(*request, false).size() > 18);
  CHECK(told(Vector(5), true).size() > 18);
  // Who carries an input is below, too.
  ReadySet outsider = Of({2, 3}, *request);
  outsider.AddInput({8, 1, std::make_shared<const std::vector<std::byte>>(16)});
  WireWriter writer;
  writer.Put(uint8_t{1});
  PutReady(writer, kOne, outsider, true, 7, numbers);
  CHECK(!heard(writer.bytes(), {2, 3}).first);
  const auto [fits, news] = heard(told(*request, true), {2, 3});
  CHECK(fits);
  CHECK(news.call == kOne);
  CHECK_EQ(news.seen, 7);
  CHECK_EQ(news.ready_set.count(), 2);
  CHECK(*news.ready_set.groups()[0].request == *request);
  CHECK(heard(told(Vector(5), true), {2, 3}).first);
  CHECK(!heard(told(Vector(5), true), {3, 4}).first);  // tells of who is not below
}

// Inputs that travel with the news give the bits of one pass, whoever passes them on.
TEST(eager_inputs_are_reduced_at_the_root) {
  Request request = Vector(3);
  request.op = ReduceOp::kAverage;
  request.tensors.push_back({DType::kInt32, {1}});
  const EagerRule rule(std::vector<uint32_t>{1, 1, 1}, false, {});
  CHECK_EQ(rule.BytesOf(request), 32);
  MultiHostRoot root({4, 5, 9}, 0);
  CallNumbers numbers;
  MultiHostRoot::Verdicts verdicts;
  for (uint32_t member = 0; member < 3; ++member) {
    const std::vector<float> floats{1.0f * member, 2.0f, 3.0f * member};
    const int whole = 2;
    const std::vector<const std::byte*> tensors{reinterpret_cast<const std::byte*>(floats.data()),
                                                reinterpret_cast<const std::byte*>(&whole)};
    ReadySet ready_set = Of({member}, request);
    ready_set.AddInput(rule.Sum(request, member, {&tensors, 1}));
    WireWriter writer;
    PutReady(writer, kOne, ready_set, true, 0, numbers);
    WireReader reader(writer.bytes());
    const ReadyNews news = GetReady(reader, std::vector{member}, numbers);
    CHECK(reader.ok() && reader.at_end());
    verdicts = root.Ready(news.call, news.ready_set, 0, {1, 1, 0});
  }
  CHECK_EQ(verdicts.size(), 1);
  CHECK(verdicts[0].decision.done());
  std::vector<float> floats(3);
  int whole = 0;
  std::byte* const tensors[] = {reinterpret_cast<std::byte*>(floats.data()),
                                reinterpret_cast<std::byte*>(&whole)};
  UnpackTensors(request, verdicts[0].decision.facts[0].result, tensors);
  CHECK(floats == (std::vector<float>{1.0f, 2.0f, 3.0f}));
  CHECK_EQ(whole, 2);
  // One that does not carry: then all go by a schedule. And so does what is too long.
  verdicts = root.Ready(kTwo, Of({0, 1, 2}, request), 1, {2, 2, 0});
  CHECK(!verdicts[0].decision.done());
  CHECK_EQ(rule.BytesOf(Vector(16384)), 65536);
  CHECK_EQ(rule.BytesOf(Vector(16385)), 0);
  request.collective = Collective::kAllgather;
  CHECK_EQ(rule.BytesOf(request), 0);
}

// Names that come and go: a rank that lags is understood, and the room is bounded.
TEST(numbers_are_understood_by_ranks_that_are_ahead) {
  CallNumbers behind;
  CallNumbers ahead;
  const auto request = std::make_shared<const Request>(Vector(4));
  const auto name = [](uint64_t n) { return CallName{true, "n" + std::to_string(n), 0}; };
  uint64_t n = 0;
  for (; n < CallNumbers::kGeneration; ++n) ahead.Ran(name(n), request);
  for (; n < 4 * CallNumbers::kGeneration; ++n) {
    behind.Ran(name(n - CallNumbers::kGeneration), request);
    ahead.Ran(name(n), request);
    if (n % 977 != 0) continue;
    for (const uint64_t back : {0, 1, 5000, 16383}) {
      if (back + CallNumbers::kGeneration > n) continue;
      const CallName call = name(n - CallNumbers::kGeneration - back);
      const uint64_t* const number = behind.NumberOf(call);
      CHECK(number != nullptr);
      CHECK(ahead.At(*number)->call == call);
    }
  }
  CHECK(ahead.NumberOf(name(0)) == nullptr);
  CHECK(ahead.At(0) == nullptr);
}

/// Counts the messages that a rank gets.
class CountedLinks final : public ControlLinks {
 public:
  CountedLinks(std::unique_ptr<ControlLinks> links, std::atomic<int>& received)
      : links_(std::move(links)), received_(received) {}
  Status Send(int peer, std::span<const std::byte> bytes) override {
    return links_->Send(peer, bytes);
  }
  Result<std::optional<ControlMessage>> Receive() override {
    auto message = links_->Receive();
    if (message.ok() && message.value()) received_.fetch_add(1);
    return message;
  }
  [[nodiscard]] bool HasUnsent() override { return links_->HasUnsent(); }
  [[nodiscard]] std::vector<int> peers() const override { return links_->peers(); }
  [[nodiscard]] int WaitFd() const override { return links_->WaitFd(); }
  [[nodiscard]] const char* kind() const override { return links_->kind(); }
  [[nodiscard]] uint64_t messages_sent() const override { return links_->messages_sent(); }
  [[nodiscard]] uint64_t bytes_sent() const override { return links_->bytes_sent(); }

 private:
  std::unique_ptr<ControlLinks> links_;
  std::atomic<int>& received_;
};

// A rank that was kept from its core for long may send in two parts what it held; the least of many
// steps is what a step takes.
TEST(a_leader_hears_once_of_each_child_and_once_of_its_parent_and_other_ranks_nothing) {
  constexpr int kRanks = 8;
  constexpr int kSteps = 40;
  std::vector<std::atomic<int>> received(kRanks);
  std::vector<int> least(kRanks, INT_MAX);
  std::barrier<> all(kRanks);
  RunHosts(
      {2, 2, 2, 2},
      [&](Engine& engine, int rank) {
        for (int step = 0; step < kSteps; ++step) {
          all.arrive_and_wait();
          const int before = received[rank].load();
          all.arrive_and_wait();
          CHECK_EQ(Sum(engine, "x", 1), 8.0f);
          all.arrive_and_wait();
          least[rank] = std::min(least[rank], received[rank].load() - before);
        }
      },
      [&](EngineParts& parts, int rank) {
        parts.links = std::make_unique<CountedLinks>(std::move(parts.links), received[rank]);
      });
  const std::vector<int> host_of = Hosts(4, 2);
  for (int rank = 0; rank < kRanks; ++rank) {
    const MultiHostTree tree = TreeOver(host_of, static_cast<uint32_t>(rank));
    const bool leads = static_cast<int>(tree.locals.front()) == rank;
    CHECK_EQ(least[rank], leads ? tree.children.size() + (tree.parent ? 1 : 0) : 0);
  }
  CHECK_EQ(least[0], 3);  // the other hosts
}

// By the root's decision, and between two hosts that exchange their inputs.
TEST(all_ranks_learn_of_proposals) {
  struct Case {
    std::vector<Proposal> proposals;  // of each rank
    Proposal together;
  };
  const Proposal same{7, 3};
  const std::vector<Case> cases = {
      {{same, same, same, same}, same},
      {{same, same, same, {7, 5}}, {0, 5}},  // of another number
      {{{7, 9}, same, same, same}, {0, 9}},
      {{same, {8, 3}, same, same}, {0, 3}},  // of another plan
      {{same, same, same, {}}, {0, 3}},      // of none
      {{{}, same, same, same}, {0, 3}},
      {{{}, {}, {}, {}}, {}},
  };
  for (const std::vector<int>& hosts : {std::vector{2, 2}, std::vector{1, 2, 1}}) {
    for (const std::vector<int>& order : {std::vector{0, 1, 2, 3}, std::vector{3, 2, 1, 0}}) {
      MultiHostViews ranks(hosts);
      for (const Case& one : cases) {
        for (const int rank : order)
          CHECK(ranks.Announce(rank, "a", Collective::kAllreduce, one.proposals[rank]).ok());
        (void)ranks.Deliver();
        for (int rank = 0; rank < ranks.size(); ++rank) {
          const std::optional<Decision> decision = ranks.Carry(rank);
          CHECK(decision.has_value());
          CHECK(decision->facts.at(0).proposal == one.together);
        }
        (void)ranks.Deliver();
      }
    }
  }
}

TEST(disagreements_joins_and_sets_across_hosts) {
  RunHosts({2, 1, 3}, [&](Engine& engine, int rank) {
    const uint32_t some = engine.AddProcessSet({1, 2, 4, 5}).value();
    for (int step = 0; step < 3; ++step) {
      CHECK_EQ(Sum(engine, "all", 1), 6.0f);
      if (rank != 0 && rank != 3) CHECK_EQ(Sum(engine, "some", 1, some), 4.0f);
    }
    for (const int odd_rank : {4, 1}) {
      std::vector<float> odd(rank == odd_rank ? 2 : 3);
      const int64_t length = static_cast<int64_t>(odd.size());
      auto handle = engine.Submit(
          Make(Collective::kAllreduce, "odd", DType::kFloat32, {length}, odd.data(), odd.data()));
      const Status outcome = WaitAndRelease(engine, handle.value());
      CHECK(!outcome.ok());
      CHECK(outcome.error().kind == ErrorKind::kMismatch);
      CHECK_EQ(outcome.error().culprit, odd_rank);
      CHECK_EQ(outcome.error().message, "tensor 'odd': mismatched shape: rank 0 has [3], rank " +
                                            std::to_string(odd_rank) + " has [2]");
    }
    if (rank > 3) CHECK_EQ(Sum(engine, "uneven", 2), 4.0f);  // the others give zeros
    Submission join;
    join.request.collective = Collective::kJoin;
    auto handle = engine.Submit(std::move(join));
    CHECK(handle.ok());
    CHECK(WaitAndRelease(engine, handle.value()).ok());
    CHECK_EQ(Sum(engine, "all", 1), 6.0f);
    CHECK(engine.RemoveProcessSet(some).ok());
  });
}

// Whom a call waits for is known although others on the way hold the news of those that have it.
TEST(missing_ranks_are_named_across_hosts) {
  std::barrier<> all(6);
  RunHosts({2, 2, 2}, [&](Engine& engine, int rank) {
    CHECK_EQ(Sum(engine, "x", 1), 6.0f);
    if (rank != 4) {
      float value = 1;
      Submission late = Make(Collective::kAllreduce, "late", DType::kFloat32, {1}, &value, &value);
      late.limit_seconds = 3;
      auto handle = engine.Submit(std::move(late));
      CHECK(handle.ok());
      const Status outcome = WaitAndRelease(engine, handle.value());
      CHECK(!outcome.ok());
      CHECK(outcome.error().kind == ErrorKind::kTimeout);
      CHECK_EQ(outcome.error().culprit, 4);
      CHECK(outcome.error().message.ends_with("waiting for rank(s) 4"));
    }
    all.arrive_and_wait();
  });
}

// The leader of a host, through which its other rank is heard.
TEST(a_leader_that_shuts_down_is_named) {
  RunHosts({2, 2, 1}, [&](Engine& engine, int rank) {
    CHECK_EQ(Sum(engine, "first", 1), 5.0f);
    if (rank == 2) {
      CHECK(engine.Shutdown().ok());
      return;
    }
    float value = 1;
    auto handle =
        engine.Submit(Make(Collective::kAllreduce, "second", DType::kFloat32, {1}, &value, &value));
    const Status outcome =
        handle.ok() ? WaitAndRelease(engine, handle.value()) : Status(handle.error());
    CHECK(!outcome.ok());
    CHECK(outcome.error().kind == ErrorKind::kAborted);
    CHECK_EQ(outcome.error().culprit, 2);
  });
}

}  // namespace
}  // namespace horoacc::testing
