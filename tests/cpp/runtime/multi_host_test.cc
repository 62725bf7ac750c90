// Ranks that share no memory: the root of their controller by hand, and engines as threads that
// have nothing in common but links.
#include <latch>

#include "negotiate/multi_host/multi_host_root.h"
#include "support/host_ranks.h"
#include "transport/data/tagged/tagged_links.h"

namespace horoacc::testing {
namespace {

Request Vector(int64_t elements, Collective collective = Collective::kAllreduce) {
  Request request;
  request.collective = collective;
  request.tensors = {{DType::kFloat32, {elements}}};
  return request;
}

ReadySet Of(std::vector<uint32_t> members, const Request& request) {
  ReadySet ready_set;
  CHECK(ready_set.Add(std::make_shared<const Request>(request), members));
  return ready_set;
}

/// One member's news at the root.
MultiHostRoot::Verdicts Ready(MultiHostRoot& root, uint32_t member, const CallName& call,
                              const Request& request, uint64_t seen, const RootPlace& place = {}) {
  return root.Ready(call, Of({member}, request), seen, place);
}

const CallName kOne{true, "one", 0};
const CallName kTwo{true, "two", 0};

TEST(a_call_is_decided_once_all_have_it) {
  MultiHostRoot root({4, 5, 9}, 0);
  CHECK(Ready(root, 2, kOne, Vector(3), 0).empty());
  CHECK(Ready(root, 0, kOne, Vector(3), 0, {7, 1, 0}).empty());
  CHECK_EQ(root.WhoHas(kOne)->ready.size(), 2);
  CHECK_EQ(root.WhoHas(kOne)->missing.at(0), 5);
  const auto verdicts = Ready(root, 1, kOne, Vector(3), 0);
  CHECK_EQ(verdicts.size(), 1);
  CHECK(verdicts[0].decision.kind == Decision::Kind::kRun);
  CHECK(verdicts[0].calls == std::vector{kOne});
  CHECK(!root.WhoHas(kOne));
}

TEST(unnamed_calls_meet_by_number) {
  MultiHostRoot root({0, 1}, 0);
  const CallName first{false, "", 0};
  const CallName second{false, "", 1};
  CHECK(Ready(root, 1, first, Vector(1), 0).empty());
  CHECK(Ready(root, 0, second, Vector(1), 0, {kNamedIds + 1, 2, 0}).empty());
  CHECK_EQ(Ready(root, 0, first, Vector(1), 0, {kNamedIds, 1, 0}).size(), 1);
  CHECK_EQ(Ready(root, 1, second, Vector(1), 0).size(), 1);
}

TEST(a_disagreement_names_both_ranks) {
  MultiHostRoot root({4, 5, 9}, 0);
  (void)Ready(root, 0, kOne, Vector(3), 0, {7, 1, 0});
  (void)Ready(root, 1, kOne, Vector(3), 0);
  const auto verdicts = Ready(root, 2, kOne, Vector(2), 0);
  CHECK_EQ(verdicts.size(), 1);
  CHECK(verdicts[0].decision.error.kind == ErrorKind::kMismatch);
  CHECK_EQ(verdicts[0].decision.error.culprit, 9);
  CHECK(verdicts[0].decision.error.message.find("rank 4") != std::string::npos);
  CHECK(verdicts[0].decision.error.message.find("rank 9") != std::string::npos);
}

TEST(facts_tell_what_every_rank_gives) {
  MultiHostRoot root({0, 1}, 0);
  (void)Ready(root, 0, kOne, Vector(3, Collective::kAllgather), 0, {1, 1, 0});
  auto verdicts = Ready(root, 1, kOne, Vector(5, Collective::kAllgather), 0);
  CHECK(verdicts[0].decision.facts[0].rows == std::vector<int64_t>{3, 5});
  Request split = Vector(4, Collective::kAlltoall);
  split.splits = {1, 3};
  (void)Ready(root, 0, kTwo, split, 1, {2, 2, 0});
  verdicts = Ready(root, 1, kTwo, Vector(6, Collective::kAlltoall), 1);
  CHECK(verdicts[0].decision.facts[0].splits == std::vector<int64_t>{1, 3, 3, 3});
  WireWriter writer;
  const CallNumbers numbers;
  Put(writer, verdicts[0], numbers);
  WireReader reader(writer.bytes());
  const MultiHostDecision read = GetMultiHostDecision(reader, numbers);
  CHECK(reader.ok() && reader.at_end());
  CHECK(read.calls == verdicts[0].calls);
  CHECK(read.decision.facts[0].splits == verdicts[0].decision.facts[0].splits);
}

// Both as they came over the wire: the root reads numbers of other ranks.
TEST(splits_that_do_not_fit_end_the_call) {
  const auto decided = [](const Request& first, const Request& second) {
    MultiHostRoot root({4, 7}, 0);
    (void)Ready(root, 0, kOne, first, 0, {1, 1, 0});
    const auto verdicts = Ready(root, 1, kOne, second, 0);
    CHECK_EQ(verdicts.size(), 1);
    return verdicts[0].decision;
  };
  Request even = Vector(4, Collective::kAlltoall);
  Request takes = even;
  takes.receives = {2, 2};
  CHECK(decided(even, takes).kind == Decision::Kind::kRun);
  CHECK(decided(takes, takes).kind == Decision::Kind::kRun);
  takes.receives = {1, 2};
  for (const Decision& decision : {decided(even, takes), decided(takes, takes)}) {
    CHECK(decision.error.kind == ErrorKind::kMismatch);
    CHECK_EQ(decision.error.culprit, 4);
    CHECK(decision.error.message.find("rank 4 sends 2 rows to rank") != std::string::npos);
    CHECK(decision.error.message.find("has room for 1") != std::string::npos);
  }
  Request odd = even;
  odd.splits = {1, 1, 2};
  const Decision decision = decided(even, odd);
  CHECK(decision.error.kind == ErrorKind::kMismatch);
  CHECK_EQ(decision.error.culprit, 7);
  CHECK(decision.error.message.find("rank 7 has 3, the set has 2 ranks") != std::string::npos);
}

// What a rank had submitted before it took the rejection belongs to the call that was rejected.
TEST(a_rejected_call_takes_what_is_on_its_way_with_it) {
  MultiHostRoot root({0, 1, 2}, 0);
  (void)Ready(root, 0, kOne, Vector(1), 0, {1, 1, 0});
  Error late = MakeError(ErrorKind::kTimeout, "too late");
  const auto rejected = root.Reject(kOne, late);
  CHECK_EQ(rejected.size(), 1);
  CHECK(rejected[0].decision.error.message.find("waiting for rank(s) 1, 2") != std::string::npos);
  CHECK(root.Reject(kOne, late).empty());
  CHECK(Ready(root, 1, kOne, Vector(1), 0).empty());
  CHECK(!root.WhoHas(kOne));
  CHECK(Ready(root, 1, kOne, Vector(1), 1).empty());
  CHECK(Ready(root, 0, kOne, Vector(1), 1, {1, 2, 0}).empty());
  CHECK_EQ(Ready(root, 2, kOne, Vector(1), 1).size(), 1);
}

TEST(joined_ranks_are_not_waited_for) {
  MultiHostRoot root({0, 1, 2}, 0);
  (void)Ready(root, 0, kOne, Vector(2), 0, {1, 1, 0});
  (void)Ready(root, 2, kOne, Vector(2), 0);
  auto verdicts = root.Joined(1, 5);
  CHECK_EQ(verdicts.size(), 1);
  CHECK(verdicts[0].decision.partial);
  CHECK(verdicts[0].decision.facts[0].request.Signature() == Vector(2).Signature());
  (void)Ready(root, 0, kTwo, Vector(2, Collective::kBroadcast), 1, {2, 2, 0});
  verdicts = Ready(root, 2, kTwo, Vector(2, Collective::kBroadcast), 1);
  CHECK(verdicts[0].decision.kind == Decision::Kind::kError);
  CHECK_EQ(verdicts[0].decision.error.culprit, 1);
  CHECK(root.Joined(0, 2).empty());
  verdicts = root.Joined(2, 9);
  CHECK_EQ(verdicts.size(), 1);
  CHECK(verdicts[0].decision.kind == Decision::Kind::kJoin);
  CHECK_EQ(verdicts[0].decision.last_joined, 2);
  CHECK_EQ(verdicts[0].decision.unnamed, 9);
}

TEST(a_bucket_waits_for_its_members_until_a_rank_is_blocked) {
  MultiHostRoot root({0, 1}, 1 << 20);
  uint64_t sequence = 0;
  const auto submit = [&](const CallName& call, uint32_t id) {
    auto verdicts = Ready(root, 0, call, Vector(4), 0, {id, ++sequence, 0});
    for (auto& verdict : Ready(root, 1, call, Vector(4), 0)) verdicts.push_back(std::move(verdict));
    return verdicts;
  };
  CHECK_EQ(submit(kOne, 1).size(), 1);
  CHECK_EQ(submit(kTwo, 2).size(), 1);
  CHECK(submit(kOne, 1).empty());
  auto verdicts = submit(kTwo, 2);
  CHECK_EQ(verdicts.size(), 1);
  CHECK_EQ(verdicts[0].calls.size(), 2);
  CHECK(submit(kOne, 1).empty());
  verdicts = root.Split(0, kOne, 4);
  CHECK_EQ(verdicts.size(), 1);
  CHECK(verdicts[0].calls == std::vector{kOne});
  CHECK(root.Split(0, kOne, 4).empty());
  CHECK_EQ(submit(kTwo, 2).size(), 1);
}

TEST(a_name_that_comes_back_to_an_id_is_known_by_it) {
  MultiHostRoot root({0, 1}, 1 << 20);
  uint64_t sequence = 0;
  const auto submit = [&](const CallName& call, uint32_t id) {
    (void)Ready(root, 0, call, Vector(4), 0, {id, ++sequence, 0});
    return Ready(root, 1, call, Vector(4), 0).size();
  };
  CHECK_EQ(submit(kOne, 1), 1);
  CHECK_EQ(submit(kOne, 2),
           1);  // another name had its id meanwhile, of which the root knew nothing
  CHECK_EQ(submit(kTwo, 2), 1);
  CHECK_EQ(submit(kOne, 1), 1);
  CHECK_EQ(submit(kOne, 1), 0);  // they have a bucket
  CHECK_EQ(submit(kTwo, 2), 1);
  CHECK_EQ(submit(kOne, 1), 0);
  CHECK_EQ(root.Split(0, kOne, 6).size(), 1);
}

/// Every rank is a thread with memory of its own.
void RunApart(int ranks, const std::function<void(Engine&, int)>& body) {
  RunHosts(std::vector<int>(ranks, 1), body);
}

TEST(engines_reduce_over_links_alone) {
  for (const int ranks : {2, 3, 5}) {
    RunApart(ranks, [&](Engine& engine, int rank) {
      constexpr int kTensors = 20;
      for (int step = 0; step < 6; ++step) {
        std::vector<std::vector<float>> data(kTensors);
        std::vector<uint64_t> handles(kTensors);
        for (int k = 0; k < kTensors; ++k) {
          const int t = (k * 7 + rank * 3) % kTensors;  // each rank in an order of its own
          data[t].assign(1000 + t, static_cast<float>(rank + 1));
          auto handle =
              engine.Submit(Make(Collective::kAllreduce, "t" + std::to_string(t), DType::kFloat32,
                                 {1000 + t}, data[t].data(), data[t].data()));
          CHECK(handle.ok());
          handles[t] = handle.value();
        }
        for (const uint64_t handle : handles) CHECK(WaitAndRelease(engine, handle).ok());
        for (const auto& tensor : data) {
          for (const float value : tensor) CHECK_EQ(value, ranks * (ranks + 1) / 2.0f);
        }
      }
    });
  }
}

TEST(engines_reduce_over_a_transport_from_a_library) {
  const auto over_library = [](EngineParts& parts, int) {
    auto links = LoadDataLinks(*parts.bootstrap, SAMPLE_TRANSPORT, 0, NowNs() + 60 * kSecond);
    if (!links.ok()) check::Fail(__FILE__, __LINE__, links.error().message);
    CHECK_EQ(std::string(links.value()->kind()), "sample");
    parts.multi_host->across = std::move(links).value();
  };
  const auto body = [](Engine& engine, int rank) {
    for (const int64_t length : {int64_t{1}, int64_t{1003}, int64_t{1} << 20}) {
      std::vector<double> data(length, rank);
      auto handle = engine.Submit(Make(Collective::kAllreduce, "of " + std::to_string(length),
                                       DType::kFloat64, {length}, data.data(), data.data()));
      CHECK(handle.ok());
      CHECK(WaitAndRelease(engine, handle.value()).ok());
      for (const double value : data) CHECK_EQ(value, 3.0);
    }
  };
  RunHosts({1, 1, 1}, body, over_library);
  RunHosts({2, 1}, body, over_library);
}

TEST(process_sets_joins_and_disagreements_over_links_alone) {
  RunApart(3, [&](Engine& engine, int rank) {
    const uint32_t pair = engine.AddProcessSet({0, 2}).value();
    if (rank != 1) CHECK_EQ(Sum(engine, "pair", 1, pair), 2.0f);
    CHECK(engine.RemoveProcessSet(pair).ok());
    std::vector<float> odd(rank == 1 ? 2 : 3);
    const int64_t length = static_cast<int64_t>(odd.size());
    auto handle = engine.Submit(
        Make(Collective::kAllreduce, "odd", DType::kFloat32, {length}, odd.data(), odd.data()));
    const Status outcome = WaitAndRelease(engine, handle.value());
    CHECK(!outcome.ok());
    CHECK(outcome.error().kind == ErrorKind::kMismatch);
    if (rank == 0) CHECK_EQ(Sum(engine, "alone", 3), 3.0f);
    Submission join;
    join.request.collective = Collective::kJoin;
    handle = engine.Submit(std::move(join));
    CHECK(handle.ok());
    CHECK(WaitAndRelease(engine, handle.value()).ok());
    CHECK_EQ(Sum(engine, "again", 1), 3.0f);
  });
}

TEST(messages_go_over_links) {
  RunApart(3, [&](Engine& engine, int rank) {
    const int next = (rank + 1) % 3;
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{100}, uint64_t{3} << 20}) {
      std::vector<char> out(bytes, static_cast<char>('a' + rank));
      std::vector<char> in(bytes);
      Message send{.sends = true, .peer = next, .tag = 5, .bytes = bytes};
      Message receive{.peer = kAnySource, .tag = 5, .bytes = bytes};
      auto sent = engine.SubmitMessage(0, send, {out.data() + 0, nullptr}, 0, {});
      auto received = engine.SubmitMessage(0, receive, {nullptr, in.data()}, 0, {});
      CHECK(sent.ok() && received.ok());
      CHECK(WaitAndRelease(engine, received.value()).ok());
      CHECK(WaitAndRelease(engine, sent.value()).ok());
      for (const char c : in) CHECK_EQ(c, 'a' + (rank + 2) % 3);
    }
  });
}

// Of what no receive has matched a receiver keeps a little; the rest waits with its sender.
TEST(a_receiver_keeps_a_bounded_part_of_small_messages) {
  RunApart(2, [](Engine& engine, int rank) {
    constexpr uint64_t kSizes[] = {60'000, 0};
    for (const uint64_t bytes : kSizes) {
      constexpr int kMessages = 5000;
      const int count = bytes > 0 ? 60 : kMessages;
      const auto tag = static_cast<int32_t>(bytes);
      const auto receive_all = [&] {
        std::vector<char> in(bytes);
        for (int k = 0; k < count; ++k) {
          auto received = engine.SubmitMessage(0, {.peer = 0, .tag = tag, .bytes = bytes},
                                               {nullptr, in.data()}, 0, {});
          CHECK(received.ok() && WaitAndRelease(engine, received.value()).ok());
          for (const char c : in) CHECK_EQ(c, static_cast<char>(k));
        }
      };
      // Twice: what was received has given its room back.
      for (int turn = 0; turn < 2; ++turn) {
        CHECK_EQ(Sum(engine, "begin", 1), 2.0f);
        std::vector<uint64_t> handles;
        std::vector<std::vector<char>> out;
        for (int k = 0; k < count && rank == 0; ++k) {
          out.emplace_back(bytes, static_cast<char>(k));
          auto sent =
              engine.SubmitMessage(0, {.sends = true, .peer = 1, .tag = tag, .bytes = bytes},
                                   {out.back().data(), nullptr}, 0, {});
          CHECK(sent.ok());
          handles.push_back(sent.value());
        }
        if (rank == 0) {
          const auto gone = std::ranges::count_if(
              handles, [&](uint64_t handle) { return engine.Poll(handle).value_or(true); });
          // A quarter of the room may not have been given back yet.
          const auto room = static_cast<int64_t>((1 << 20) / (bytes + 256));
          CHECK(gone <= room);
          CHECK(gone >= room / 2);
        }
        // Nobody waits for a message that has not been asked for.
        CHECK_EQ(Sum(engine, "sent", 1), 2.0f);
        if (rank == 1) receive_all();
        for (const uint64_t handle : handles) CHECK(WaitAndRelease(engine, handle).ok());
      }
    }
  });
}

TEST(who_waits_for_a_rank_that_shuts_down_is_told) {
  RunApart(3, [&](Engine& engine, int rank) {
    CHECK_EQ(Sum(engine, "first", 1), 3.0f);
    if (rank == 1) {
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
    CHECK_EQ(outcome.error().culprit, 1);
  });
}

}  // namespace
}  // namespace horoacc::testing
