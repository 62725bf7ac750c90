// Groups that only their members know of, and messages between two ranks.
#include <latch>
#include <numeric>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

constexpr double kNever = 0;

/// Jobs of three ranks: on one host, on two, and on three.
const std::vector<Pairs> kPlaces = {
    {}, {{"simulated_hosts", "2+1"}}, {{"simulated_hosts", "each"}}};

/// Rank 0 claims, and tells the others through memory of the test.
uint32_t MakeGroup(Engine& engine, int rank, const std::vector<int>& ranks,
                   std::atomic<uint32_t>& number) {
  if (rank == ranks[0]) {
    const auto claimed = engine.groups().Claim(ranks);
    CHECK(claimed.ok());
    number.store(claimed.value());
    number.notify_all();
    return claimed.value();
  }
  number.wait(0);
  CHECK(engine.groups().Join(number.load(), ranks).ok());
  return number.load();
}

uint64_t BeginSend(Engine& engine, uint32_t set, int to, int tag, const std::vector<float>& data,
                   double limit = kNever) {
  return engine
      .SubmitMessage(set, {true, to, tag, data.size() * sizeof(float)}, {data.data(), nullptr},
                     limit, nullptr)
      .value();
}

uint64_t BeginReceive(Engine& engine, uint32_t set, int from, int tag, std::vector<float>& data) {
  return engine
      .SubmitMessage(set, {false, from, tag, data.size() * sizeof(float)}, {nullptr, data.data()},
                     kNever, nullptr)
      .value();
}

Status Send(Engine& engine, uint32_t set, int to, int tag, const std::vector<float>& data) {
  return WaitAndRelease(engine, BeginSend(engine, set, to, tag, data));
}

Status Receive(Engine& engine, uint32_t set, int from, int tag, std::vector<float>& data) {
  return WaitAndRelease(engine, BeginReceive(engine, set, from, tag, data));
}

std::vector<float> Ramp(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(messages_of_all_sizes_arrive_in_order) {
  const std::vector<size_t> kCounts = {0, 1, 16384, 16385, 70'000, 1'000'000, 3};
  for (const Pairs& places : kPlaces) {
    RunRanks(3, places, [&](Engine& engine, int rank) {
      for (const size_t count : kCounts) {
        std::vector<float> got(count);
        for (const auto& [from, to] : {std::pair{0, 1}, {2, 0}}) {
          if (rank == from) CHECK(Send(engine, 0, to, 5, Ramp(count, 1)).ok());
          if (rank == to) CHECK(Receive(engine, 0, from, 5, got).ok());
          if (rank == to) CHECK(got == Ramp(count, 1));
        }
      }
    });
  }
}

TEST(a_tensor_in_shared_memory_is_read_where_it_lies) {
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    constexpr size_t kCount = 300'000;
    if (rank == 0) {
      auto* data = static_cast<float*>(engine.AllocateShared(kCount * sizeof(float)));
      std::iota(data, data + kCount, 0.0f);
      const auto handle = engine.SubmitMessage(0, {true, 1, 0, kCount * sizeof(float)},
                                               {data, nullptr}, kNever, nullptr);
      CHECK(handle.ok());
      CHECK(WaitAndRelease(engine, handle.value()).ok());
      engine.FreeShared(data);
    } else {
      std::vector<float> got(kCount);
      CHECK(Receive(engine, 0, kAnySource, 0, got).ok());
      CHECK(got == Ramp(kCount, 0));
    }
  });
}

TEST(many_messages_from_everybody_to_everybody) {
  constexpr int kRanks = 4;
  constexpr int kEach = 200;
  for (const std::string hosts : {"", "2+2", "each"}) {
    RunRanks(kRanks, {{"simulated_hosts", hosts}}, [&](Engine& engine, int rank) {
      std::vector<std::vector<float>> sent;
      std::vector<std::vector<float>> got;
      std::vector<uint64_t> handles;
      sent.reserve(kRanks * kEach);
      got.reserve(kRanks * kEach);
      for (int k = 0; k < kEach; ++k) {
        for (int peer = 0; peer < kRanks; ++peer) {
          const size_t count = k % 10 == 0 ? 20'000 : 10;
          sent.push_back(Ramp(count, static_cast<float>(1000 * rank + k)));
          got.emplace_back(count);
          handles.push_back(BeginSend(engine, 0, peer, k % 3, sent.back()));
          handles.push_back(BeginReceive(engine, 0, peer, k % 3, got.back()));
        }
      }
      for (const uint64_t handle : handles) CHECK(WaitAndRelease(engine, handle).ok());
      size_t at = 0;
      for (int k = 0; k < kEach; ++k) {
        for (int peer = 0; peer < kRanks; ++peer, ++at)
          CHECK(got[at] == Ramp(got[at].size(), static_cast<float>(1000 * peer + k)));
      }
    });
  }
}

TEST(a_receive_from_anyone_takes_messages_of_both_kinds_of_peers) {
  constexpr int kEach = 30;
  for (const Pairs& places : kPlaces) {
    RunRanks(3, places, [&](Engine& engine, int rank) {
      const auto count = [](int k) -> size_t { return k % 5 == 4 ? 30'000 : 3; };
      for (int k = 0; k < kEach && rank > 0; ++k)
        CHECK(Send(engine, 0, 0, k, Ramp(count(k), static_cast<float>(100 * rank))).ok());
      if (rank > 0) return;
      for (int k = 0; k < kEach; ++k) {
        int sources = 0;
        for (int both = 0; both < 2; ++both) {
          std::vector<float> got(count(k));
          const uint64_t handle = BeginReceive(engine, 0, kAnySource, k, got);
          const auto entry = engine.Find(handle);
          CHECK(WaitAndRelease(engine, handle).ok());
          const int source = AsMessage(entry.get())->message.source;
          CHECK(got == Ramp(got.size(), static_cast<float>(100 * source)));
          sources += source;
        }
        CHECK_EQ(sources, 3);
      }
    });
  }
}

TEST(neighbours_use_no_link_whatever_the_job_is) {
  DataLinks* across[4] = {};
  std::latch counted(4);
  const auto keep = [&](EngineParts& parts, int rank) {
    across[rank] = parts.multi_host->across.get();
  };
  RunRanks(
      4, {{"simulated_hosts", "2+2"}},
      [&](Engine& engine, int rank) {
        counted.arrive_and_wait();
        const uint64_t before = Counter(engine, "control_bytes");
        const std::vector<float> sent = Ramp(500'000, 1);
        std::vector<size_t> counts(500, 100);
        counts.push_back(sent.size());
        for (const size_t count : counts) {
          const std::vector<float> mine(sent.begin(), sent.begin() + static_cast<long>(count));
          std::vector<float> got(count);
          for (const int from : {rank ^ 1, kAnySource}) {
            const uint64_t receive = BeginReceive(engine, 0, from, 0, got);
            CHECK(Send(engine, 0, rank ^ 1, 0, mine).ok());
            CHECK(WaitAndRelease(engine, receive).ok());
            CHECK(got == mine);
          }
        }
        CHECK_EQ(across[rank]->counters().messages, 0);
        // Heartbeats: less than a byte a message.
        CHECK(Counter(engine, "control_bytes") - before < 1000);
      },
      keep);
}

TEST(what_no_receive_has_matched_takes_bounded_memory) {
  constexpr int kMany = 40;
  for (const Pairs& places : kPlaces) {
    if (places.empty()) continue;
    RunRanks(3, places, [&](Engine& engine, int rank) {
      const std::vector<float> data = Ramp(16'000, 0);
      if (rank == 0) {
        std::vector<uint64_t> handles;
        for (int k = 0; k < kMany; ++k) handles.push_back(BeginSend(engine, 0, 2, k, data));
        const auto complete = [&](uint64_t handle) { return *engine.Poll(handle) ? 1 : 0; };
        int sent = 0;
        for (const uint64_t handle : handles) sent += complete(handle);
        CHECK_EQ(sent, 16);  // 1 MiB
        CHECK(Send(engine, 0, 2, kMany, {1}).ok());
        for (const uint64_t handle : handles) CHECK(WaitAndRelease(engine, handle).ok());
      } else if (rank == 2) {
        std::vector<float> flag(1);
        CHECK(Receive(engine, 0, 0, kMany, flag).ok());
        for (int k = kMany; k-- > 0;) {
          std::vector<float> got(data.size());
          CHECK(Receive(engine, 0, 0, k, got).ok());
          CHECK(got == data);
        }
      }
    });
  }
}

TEST(sizes_that_differ_are_named_by_both) {
  for (const Pairs& places : kPlaces) {
    RunRanks(3, places, [&](Engine& engine, int rank) {
      for (const size_t count : {size_t{5}, size_t{100'000}}) {
        const std::string text = "rank 0 sends a message of " + std::to_string(4 * count) +
                                 " bytes, and rank 2 receives one of 8";
        std::vector<float> got(2);
        if (rank == 0) {
          const Status sent = Send(engine, 0, 2, 0, Ramp(count, 0));
          CHECK(sent.ok() == (count == 5));
          if (!sent.ok()) CHECK_EQ(sent.error().message, text);
          CHECK(Send(engine, 0, 2, 0, {1, 2}).ok());
        } else if (rank == 2) {
          const Status refused = Receive(engine, 0, 0, 0, got);
          CHECK(!refused.ok() && refused.error().kind == ErrorKind::kMismatch);
          CHECK_EQ(refused.error().message, text);
          CHECK(Receive(engine, 0, 0, 0, got).ok());
          CHECK_EQ(got[1], 2.0f);
        }
      }
    });
  }
}

TEST(a_peer_that_shuts_down_ends_what_waits_for_it) {
  for (const Pairs& places : kPlaces) {
    RunRanks(3, places, [&](Engine& engine, int rank) {
      if (rank == 0) {
        CHECK(Send(engine, 0, 2, 1, Ramp(4, 0)).ok());
        CHECK(engine.Shutdown().ok());
      }
      if (rank < 2) return;
      std::vector<float> none(1);
      const Status outcome = Receive(engine, 0, 0, 2, none);
      CHECK(!outcome.ok());
      CHECK(outcome.error().message.find("rank 0 has shut down") != std::string::npos);
      std::vector<float> got(4);
      CHECK(Receive(engine, 0, 0, 1, got).ok());  // what was sent before is still received
      CHECK(got == Ramp(4, 0));
      const Status sent = Send(engine, 0, 0, 1, Ramp(100'000, 0));
      CHECK(sent.error().message.find("rank 0 has shut down") != std::string::npos);
    });
  }
}

TEST(a_message_has_a_limit) {
  for (const Pairs& places : kPlaces) {
    RunRanks(3, places, [&](Engine& engine, int rank) {
      if (rank > 0) return;
      const std::vector<float> data(100'000);
      const Status outcome = WaitAndRelease(engine, BeginSend(engine, 0, 2, 0, data, 0.05));
      CHECK(!outcome.ok());
      CHECK(outcome.error().kind == ErrorKind::kTimeout);
    });
  }
}

TEST(messages_of_a_member_that_has_left_are_received) {
  for (const Pairs& places : kPlaces) {
    std::atomic<uint32_t> number = 0;
    std::latch left(2);
    RunRanks(3, places, [&](Engine& engine, int rank) {
      if (rank == 1) return;
      const uint32_t group = MakeGroup(engine, rank, {0, 2}, number);
      if (rank == 0) {
        CHECK(Send(engine, group, 2, 0, Ramp(1000, 3)).ok());
        CHECK(engine.LeaveGroup(group).ok());
      }
      left.arrive_and_wait();
      if (rank == 0) return;
      std::vector<float> got(1000);
      std::vector<float> none(1);
      const Status ended = Receive(engine, group, 0, 1, none);
      CHECK(ended.error().message.find("rank 0 has left") != std::string::npos ||
            ended.error().message.find("rank 0 has shut down") != std::string::npos);
      CHECK(Receive(engine, group, 0, 0, got).ok());
      CHECK(got == Ramp(1000, 3));
      CHECK(engine.LeaveGroup(group).ok());
    });
  }
}

TEST(groups_reduce_and_are_used_again) {
  for (const Pairs& controller : kControllers) {
    constexpr int kRounds = 3 * static_cast<int>(kMaxGroups) / 2;
    std::vector<std::atomic<uint32_t>> numbers(kRounds);
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (int round = 0; round < kRounds; ++round) {
        if (rank == 1) continue;
        const uint32_t group = MakeGroup(engine, rank, {0, 2}, numbers[round]);
        float value = 1;
        Submission submission =
            Make(Collective::kAllreduce, "", DType::kFloat32, {1}, &value, &value);
        submission.process_set = group;
        const auto handle = engine.Submit(std::move(submission));
        CHECK(handle.ok());
        CHECK(WaitAndRelease(engine, handle.value()).ok());
        CHECK_EQ(value, 2.0f);
        CHECK(engine.LeaveGroup(group).ok());
      }
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
