// Composed allreduces: every type, arithmetic operation and factor, sizes around the cuts, on hosts
// of any shape, of private and of shared memory, against float64.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "negotiate/multi_host/subtree_aggregator.h"
#include "schedule/algorithms.h"
#include "support/ranks.h"
#include "support/run_numbers.h"

namespace horoacc::testing {
namespace {

std::vector<CaseTensor> Tensors(uint32_t ranks) {
  std::vector<CaseTensor> tensors;
  for (int type = 0; type < kDTypeCount; ++type) {
    const auto of = static_cast<DType>(type);
    for (const ReduceOp by :
         {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!CheckReducible(of, by).ok()) continue;
      CaseTensor tensor{of, by, {}, 1009};
      if (by == ReduceOp::kAverage) tensor.scale.divisor = ranks;
      tensors.push_back(tensor);
    }
    if (!CheckReducible(of, ReduceOp::kSum).ok()) continue;
    tensors.push_back({of, ReduceOp::kSum, {0.5, 0.25, 1.0}, 2003});
    for (const uint64_t count : {0, 1, 31, 40'001})
      tensors.push_back({of, ReduceOp::kSum, {}, count});
  }
  return tensors;
}

void CheckTensor(const CaseTensor& tensor, const std::vector<std::vector<std::byte>>& inputs,
                 const std::byte* actual, const std::string& where) {
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  const std::string text = std::string(NameOf(tensor.op)) + " of " + std::to_string(tensor.count) +
                           " " + std::string(NameOf(tensor.type)) + where;
  if (!Rounds(tensor)) {
    const auto expected =
        oracle::Reduce(sources, tensor.count, tensor.type, tensor.op, tensor.scale);
    if (oracle::FirstDifference(actual, expected.data(), tensor.count, tensor.type) < tensor.count)
      check::Fail(__FILE__, __LINE__, text);
    return;
  }
  const auto expected = ReduceInDouble(sources, tensor.count, tensor);
  const auto found = ToDouble(actual, tensor.count, tensor.type);
  const double allowed = AllowedError(tensor, static_cast<uint32_t>(inputs.size()));
  for (uint64_t k = 0; k < expected.size() / sizeof(double); ++k) {
    const double difference =
        oracle::At<double>(found.data(), k) - oracle::At<double>(expected.data(), k);
    if (!(std::fabs(difference) <= allowed)) return check::Fail(__FILE__, __LINE__, text);
  }
}

void CheckHosts(const char* hosts, int ranks, const Pairs& more, bool in_arena, bool in_place) {
  const std::vector<CaseTensor> tensors = Tensors(static_cast<uint32_t>(ranks));
  std::vector<std::vector<std::vector<std::byte>>> inputs(tensors.size());  // by tensor, rank
  std::mt19937 random(ranks);
  for (size_t t = 0; t < tensors.size(); ++t) {
    inputs[t].resize(ranks);
    for (auto& input : inputs[t]) {
      input.resize(tensors[t].count * SizeOf(tensors[t].type));
      Fill(random, tensors[t], input);
    }
  }
  const std::string where = std::string(" on ") + hosts + (in_arena ? ", shared" : ", private") +
                            (in_place ? ", in place" : "");
  RunRanks(ranks, With(more, {{"simulated_hosts", hosts}}), [&](Engine& engine, int rank) {
    // The second step is fused.
    for (int step = 0; step < 2; ++step) {
      std::vector<uint64_t> handles;
      std::vector<std::byte*> blocks;
      for (size_t t = 0; t < tensors.size(); ++t) {
        const CaseTensor& tensor = tensors[t];
        const size_t bytes = inputs[t][rank].size();
        // A private tensor begins at an odd address.
        auto* const block = static_cast<std::byte*>(in_arena ? engine.AllocateShared(2 * bytes + 64)
                                                             : ::operator new(2 * bytes + 64));
        blocks.push_back(block);
        std::byte* const input = in_arena ? block : block + 1;
        std::byte* const output = in_place ? input : input + bytes;
        if (bytes > 0) std::memcpy(input, inputs[t][rank].data(), bytes);
        Submission submission =
            Make(Collective::kAllreduce, "t" + std::to_string(t), tensor.type,
                 {static_cast<int64_t>(tensor.count)}, input, output, tensor.op);
        submission.request.prescale = tensor.scale.pre;
        submission.request.postscale = tensor.scale.post;
        auto handle = engine.Submit(std::move(submission));
        CHECK(handle.ok());
        handles.push_back(handle.value());
      }
      for (size_t t = 0; t < tensors.size(); ++t) {
        CHECK(WaitAndRelease(engine, handles[t]).ok());
        const size_t bytes = inputs[t][rank].size();
        const std::byte* const input = in_arena ? blocks[t] : blocks[t] + 1;
        CheckTensor(tensors[t], inputs[t], in_place ? input : input + bytes, where);
        if (!in_place && bytes > 0) CHECK(std::memcmp(input, inputs[t][rank].data(), bytes) == 0);
      }
      for (std::byte* const block : blocks) {
        if (in_arena) engine.FreeShared(block);
        if (!in_arena) ::operator delete(block);
      }
    }
    const char* const counter = in_arena ? "arena_bytes" : "window_bytes";
    CHECK_EQ(Counter(engine, counter) > 0, std::string_view(hosts) != "1+1+1");
  });
}

void CheckWays(const char* hosts, int ranks) {
  for (const bool in_arena : {true, false}) {
    for (const bool in_place : {true, false}) {
      const char* const window = in_arena == in_place ? "4096" : "0";
      CheckHosts(hosts, ranks, {{"reduction", "fast"}, {"window_bytes", window}}, in_arena,
                 in_place);
    }
  }
}

// The host's news goes in two parts then.
TEST(a_late_rank_leaves_shared_tensors_shared) {
  RunRanks(4, {{"simulated_hosts", "2+2"}, {"reduction", "fast"}}, [](Engine& engine, int rank) {
    constexpr int64_t kCount = 40'001;
    auto* const numbers = static_cast<float*>(engine.AllocateShared(kCount * sizeof(float)));
    std::fill_n(numbers, kCount, static_cast<float>(rank));
    if (rank == 1) std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kSubtreeTimeout));
    const auto handle = engine.Submit(Make(Collective::kAllreduce, "late", DType::kFloat32,
                                           {kCount}, numbers, numbers, ReduceOp::kSum));
    CHECK(handle.ok());
    CHECK(WaitAndRelease(engine, handle.value()).ok());
    CHECK(std::all_of(numbers, numbers + kCount, [](float sum) { return sum == 6; }));
    CHECK(Counter(engine, "arena_bytes") > 0);
    CHECK_EQ(Counter(engine, "window_bytes"), uint64_t{0});
    engine.FreeShared(numbers);
  });
}

TEST(two_hosts_alike) {
  CheckWays("2+2", 4);
  CheckWays("4+4", 8);
}
TEST(hosts_of_several_sizes) {
  CheckWays("2+1", 3);
  CheckWays("3+2", 5);
  CheckWays("1+3+2", 6);
}
/// How the latest call was reduced.
class LatestWay final : public EventSink {
 public:
  void On(const Event& event) override {
    const std::lock_guard lock(mutex_);
    if (event.phase == Phase::kExecute) how_ = event.detail;
  }
  [[nodiscard]] std::string how() const {
    const std::lock_guard lock(mutex_);
    return how_;
  }

 private:
  mutable std::mutex mutex_;
  std::string how_;
};

// By the algorithm that the ranks name, in windows of the size that they name.
TEST(ways_that_ranks_name) {
  for (const auto& [ranks, hosts] : {std::pair(2, "1+1"), {4, "2+2"}, {3, "2+1"}, {4, "each"}}) {
    const Pairs settings = {{"simulated_hosts", hosts}, {"reduction", "fast"}};
    RunRanks(ranks, settings, [ranks = ranks, hosts = hosts](Engine& engine, int rank) {
      const auto latest = std::make_shared<LatestWay>();
      engine.events().Attach(latest);
      uint32_t number = 0;
      for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
        ++number;
        if (algorithm.goal != schedule::Goal::kAllreduce) continue;
        std::vector<int32_t> sums(40'001, rank + 1);
        Submission submission = Make(Collective::kAllreduce, "t", DType::kInt32, {40'001},
                                     sums.data(), sums.data(), ReduceOp::kSum);
        submission.request.way = {number, 4096 * (number % 3)};
        const auto handle = engine.Submit(std::move(submission));
        CHECK(handle.ok());
        CHECK(WaitAndRelease(engine, handle.value()).ok());
        const int32_t sum = ranks * (ranks + 1) / 2;
        CHECK(std::ranges::all_of(sums, [&](int32_t n) { return n == sum; }));
        // Of 2+1 one rank is no rail, and takes no part between hosts.
        if (std::string_view(hosts) != "2+1" || rank != 1) CHECK_EQ(latest->how(), algorithm.name);
      }
    });
  }
}

// An error on all ranks, as of any other disagreement.
TEST(ways_that_differ) {
  RunRanks(2, {{"simulated_hosts", "1+1"}}, [](Engine& engine, int rank) {
    std::vector<int32_t> sums(40'001);
    Submission submission = Make(Collective::kAllreduce, "t", DType::kInt32, {40'001}, sums.data(),
                                 sums.data(), ReduceOp::kSum);
    submission.request.way.algorithm = static_cast<uint32_t>(rank + 1);
    const auto handle = engine.Submit(std::move(submission));
    CHECK(handle.ok());
    const Status status = WaitAndRelease(engine, handle.value());
    CHECK(!status.ok());
    if (!status.ok()) CHECK(status.error().message.find("tuned settings") != std::string::npos);
  });
}

TEST(one_rank_a_host) { CheckWays("1+1+1", 3); }

}  // namespace
}  // namespace horoacc::testing
