// Groups that only their members know of, and messages between two ranks.
#include <numeric>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

const std::vector<Pairs> kControllers = {{{"control", "shm"}}, {{"control", "tcp"}}};
constexpr double kNever = 0;

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

Status Send(Engine& engine, uint32_t set, int to, int tag, const std::vector<float>& data) {
  const auto handle = engine.SubmitMessage(set, {true, to, tag, data.size() * sizeof(float)},
                                           {data.data(), nullptr}, kNever, nullptr);
  CHECK(handle.ok());
  return WaitAndRelease(engine, handle.value());
}

Status Receive(Engine& engine, uint32_t set, int from, int tag, std::vector<float>& data) {
  const auto handle = engine.SubmitMessage(set, {false, from, tag, data.size() * sizeof(float)},
                                           {nullptr, data.data()}, kNever, nullptr);
  CHECK(handle.ok());
  return WaitAndRelease(engine, handle.value());
}

std::vector<float> Ramp(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(messages_of_all_sizes_arrive_in_order) {
  const std::vector<size_t> kCounts = {0, 1, 16384, 16385, 70'000, 1'000'000, 3};
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (const size_t count : kCounts) {
        if (rank == 0) CHECK(Send(engine, 0, 1, 5, Ramp(count, 1)).ok());
        std::vector<float> got(count);
        if (rank == 1) CHECK(Receive(engine, 0, 0, 5, got).ok());
        if (rank == 1) CHECK(got == Ramp(count, 1));
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
  RunRanks(kRanks, {}, [&](Engine& engine, int rank) {
    std::vector<std::vector<float>> sent;
    std::vector<std::vector<float>> got;
    std::vector<uint64_t> handles;
    sent.reserve(kRanks * kEach);
    got.reserve(kRanks * kEach);
    for (int k = 0; k < kEach; ++k) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        const size_t count = k % 10 == 0 ? 20'000 : 10;
        sent.push_back(Ramp(count, static_cast<float>(1000 * rank + k)));
        got.emplace_back(count);
        handles.push_back(engine
                              .SubmitMessage(0, {true, peer, k % 3, count * sizeof(float)},
                                             {sent.back().data(), nullptr}, kNever, nullptr)
                              .value());
        handles.push_back(engine
                              .SubmitMessage(0, {false, peer, k % 3, count * sizeof(float)},
                                             {nullptr, got.back().data()}, kNever, nullptr)
                              .value());
      }
    }
    for (const uint64_t handle : handles) CHECK(WaitAndRelease(engine, handle).ok());
    size_t at = 0;
    for (int k = 0; k < kEach; ++k) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        CHECK(got[at] == Ramp(got[at].size(), static_cast<float>(1000 * peer + k)));
        ++at;
      }
    }
  });
}

TEST(a_peer_that_shuts_down_ends_what_waits_for_it) {
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    if (rank == 0) {
      CHECK(Send(engine, 0, 1, 1, Ramp(4, 0)).ok());
      CHECK(engine.Shutdown().ok());
      return;
    }
    std::vector<float> none(1);
    const Status outcome = Receive(engine, 0, 0, 2, none);
    CHECK(!outcome.ok());
    CHECK(outcome.error().message.find("rank 0 has shut down") != std::string::npos);
    std::vector<float> got(4);
    CHECK(Receive(engine, 0, 0, 1, got).ok());  // what was sent before is still received
    CHECK(got == Ramp(4, 0));
  });
}

TEST(a_message_has_a_limit) {
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    if (rank == 1) return;
    std::vector<float> data(100'000);
    const auto handle = engine.SubmitMessage(0, {true, 1, 0, data.size() * sizeof(float)},
                                             {data.data(), nullptr}, 0.05, nullptr);
    CHECK(handle.ok());
    const Status outcome = WaitAndRelease(engine, handle.value());
    CHECK(!outcome.ok());
    CHECK(outcome.error().kind == ErrorKind::kTimeout);
  });
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
        CHECK(engine.groups().Leave(group).ok());
      }
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
