// The same bits, whatever the way: every path, window, bucket, controller, memory and arrival order
// must give the reduction along the balanced tree over rank numbers, accumulated in float32 for
// 16-bit types; for every operation and type of which another order or another rounding has other
// bits.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>

#include "execute/reduce_oracle.h"
#include "support/ranks.h"

namespace horoacc::testing {
namespace {

using Bytes = std::vector<char>;

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr DType kComplex[] = {DType::kComplex64, DType::kComplex128};
constexpr DType kIntegers[] = {DType::kUInt8, DType::kInt32, DType::kInt64};
constexpr int64_t kCounts[] = {1, 63, 1000, 5003, 40'000};
constexpr int64_t kSomeCount = 3001;  // wraps around small windows whatever the type
constexpr int kSteps = 3;

struct Tensor {
  std::string name;
  DType type;
  int64_t count;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;

  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(count) * SizeOf(type); }
};

/// Sums of floats of many sizes, and one tensor of each other reduction that can differ in bits.
std::vector<Tensor> Model() {
  std::vector<Tensor> model;
  const auto add = [&](Tensor tensor) {
    tensor.name = std::string(NameOf(tensor.type)) + "." + std::string(NameOf(tensor.op)) + "." +
                  std::to_string(model.size());
    model.push_back(std::move(tensor));
  };
  for (const DType type : kFloats) {
    for (const int64_t count : kCounts) add({"", type, count});
    // What is equal may still be zeros of two signs.
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) add({"", type, kSomeCount, op});
  }
  for (const DType type : kComplex) add({"", type, kSomeCount});
  const auto rounds = [&](DType type) {
    for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kProduct}) {
      add({"", type, kSomeCount, op});
    }
    add({"", type, kSomeCount, ReduceOp::kSum, 0.7, 1.3});
  };
  for (const DType type : kFloats) rounds(type);
  for (const DType type : kComplex) rounds(type);
  // Integers wrap alike in every order, but are cut where they are scaled or divided.
  for (const DType type : kIntegers) {
    add({"", type, kSomeCount, ReduceOp::kAverage});
    add({"", type, kSomeCount, ReduceOp::kSum, 0.7, 1.3});
  }
  return model;
}

/// Numbers of many magnitudes and both signs: nearly every other order of addition gives other
/// bits. Products stay within the range; the least and the greatest are often zeros of both signs.
double Draw(std::mt19937& random, const Tensor& tensor) {
  const double sign = random() % 2 ? 1.0 : -1.0;
  if (tensor.op == ReduceOp::kMin || tensor.op == ReduceOp::kMax) {
    const auto least = static_cast<double>(random() % 2);
    return tensor.op == ReduceOp::kMin ? std::copysign(least, least == 0 ? sign : 1.0)
                                       : std::copysign(least, least == 0 ? sign : -1.0);
  }
  const double fraction = 1.0 + static_cast<double>(random()) / 4294967296.0;
  if (tensor.op == ReduceOp::kProduct) return std::ldexp(sign * fraction, -(random() % 2 == 0));
  const int power = static_cast<int>(random() % (tensor.type == DType::kFloat16 ? 10 : 24));
  return std::ldexp(sign * fraction, power - 8);
}

void Fill(std::mt19937& random, const Tensor& tensor, Bytes& bytes) {
  oracle::WithType(tensor.type, [&](auto zero) {
    using T = decltype(zero);
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value{};
      if constexpr (std::is_integral_v<T>) {
        value = static_cast<T>(random());
      } else if constexpr (std::is_floating_point_v<T>) {
        value = static_cast<T>(Draw(random, tensor));
      } else if constexpr (requires { typename T::value_type; }) {
        using Part = typename T::value_type;
        value = {static_cast<Part>(Draw(random, tensor)), static_cast<Part>(Draw(random, tensor))};
      } else {
        value = T::Round(static_cast<float>(Draw(random, tensor)));
      }
      std::memcpy(&bytes[at], &value, sizeof value);
    }
  });
}

Bytes Reduced(const Tensor& tensor, const std::vector<const void*>& inputs) {
  const double divisor = tensor.op == ReduceOp::kAverage ? static_cast<double>(inputs.size()) : 1.0;
  return oracle::Reduce(inputs, static_cast<size_t>(tensor.count), tensor.type, tensor.op,
                        {tensor.prescale, tensor.postscale, divisor});
}

/// Whether another order of ranks must show in the bits of a thousand elements. (The last places
/// of a float32 accumulation are mostly lost when it is rounded to 16 bits.)
bool OrderShows(const Tensor& tensor, int ranks) {
  if (tensor.count < 1000) return false;
  if (tensor.op == ReduceOp::kMin || tensor.op == ReduceOp::kMax) return ranks > 1;
  const bool integer = std::ranges::find(kIntegers, tensor.type) != std::end(kIntegers);
  return ranks > 2 && !integer && SizeOf(tensor.type) > 2;
}

/// A model and its inputs and results, step by step. Made once for each number of ranks.
struct Work {
  explicit Work(int ranks) : tensors(Model()) {
    std::mt19937 random(ranks);
    inputs.resize(kSteps);
    results.resize(kSteps);
    for (int step = 0; step < kSteps; ++step) {
      inputs[step].resize(tensors.size());
      for (size_t t = 0; t < tensors.size(); ++t) {
        const Tensor& tensor = tensors[t];
        std::vector<const void*> all;
        inputs[step][t].resize(ranks);
        for (Bytes& bytes : inputs[step][t]) {
          bytes.resize(tensor.bytes());
          Fill(random, tensor, bytes);
          all.push_back(bytes.data());
        }
        results[step].push_back(Reduced(tensor, all));
        // Otherwise the tests below would show nothing.
        if (OrderShows(tensor, ranks)) {
          std::ranges::rotate(all, all.begin() + 1);
          if (Reduced(tensor, all) == results[step].back()) {
            check::Fail(__FILE__, __LINE__, tensor.name + " does not depend on the order of ranks");
          }
        }
      }
    }
  }

  std::vector<Tensor> tensors;
  std::vector<std::vector<std::vector<Bytes>>> inputs;  ///< by step, tensor, rank
  std::vector<std::vector<Bytes>> results;              ///< by step, tensor
};

enum class Memory { kPrivate, kArena, kEveryOther };

/// One job of three steps in which every rank submits in an order and at times of its own. Returns
/// the bytes that were reduced where rank 0 has them, or passed through windows.
uint64_t CheckJob(const Work& work, int ranks, const Pairs& settings, Memory memory,
                  uint32_t seed) {
  uint64_t in_host = 0;
  RunRanks(ranks, settings, [&](Engine& engine, int rank) {
    std::mt19937 random(seed * 100 + rank);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<size_t> order(work.tensors.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::shuffle(order, random);
      std::vector<void*> buffers(work.tensors.size());
      std::vector<Bytes> own(work.tensors.size());
      std::vector<uint64_t> handles(work.tensors.size());
      for (const size_t t : order) {
        const Tensor& tensor = work.tensors[t];
        const Bytes& input = work.inputs[step][t][rank];
        const bool shared = memory == Memory::kArena || (memory == Memory::kEveryOther && t % 2);
        if (shared) {
          buffers[t] = engine.AllocateShared(input.size());
          CHECK(buffers[t] != nullptr);
        } else {
          own[t].resize(input.size());
          buffers[t] = own[t].data();
        }
        std::memcpy(buffers[t], input.data(), input.size());
        if (random() % 6 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        }
        Submission submission = Make(Collective::kAllreduce, tensor.name, tensor.type,
                                     {tensor.count}, buffers[t], buffers[t], tensor.op);
        submission.request.prescale = tensor.prescale;
        submission.request.postscale = tensor.postscale;
        auto handle = engine.Submit(std::move(submission));
        CHECK(handle.ok());
        handles[t] = handle.value();
      }
      for (size_t t = 0; t < work.tensors.size(); ++t) {
        CHECK(WaitAndRelease(engine, handles[t]).ok());
        const Bytes& expected = work.results[step][t];
        const Tensor& tensor = work.tensors[t];
        const auto count = static_cast<size_t>(tensor.count);
        if (oracle::FirstDifference(buffers[t], expected.data(), count, tensor.type) < count) {
          std::string text = tensor.name + " differs on rank " + std::to_string(rank) + " of " +
                             std::to_string(ranks) + " in step " + std::to_string(step) + " with";
          for (const auto& [key, value] : settings) text += " " + key + "=" + value;
          check::Fail(__FILE__, __LINE__, text);
        }
        if (own[t].empty()) engine.FreeShared(buffers[t]);
      }
    }
    if (rank == 0) in_host = Counter(engine, "arena_bytes") + Counter(engine, "window_bytes");
  });
  return in_host;
}

struct Way {
  Pairs settings;
  Memory memory;
};

/// Every combination of path, window, threshold, controller and memory that differs in what it
/// does.
std::vector<Way> Ways() {
  std::vector<Way> ways;
  const std::vector<std::pair<Pairs, std::vector<Memory>>> kPaths = {
      {{{"reduce_path", "auto"}}, {Memory::kPrivate, Memory::kArena, Memory::kEveryOther}},
      {{{"reduce_path", "auto"}, {"last_arriver_bytes", "0"}},
       {Memory::kArena, Memory::kEveryOther}},
      {{{"reduce_path", "staged"}}, {Memory::kPrivate, Memory::kEveryOther}},
      {{{"reduce_path", "windows"}, {"window_bytes", "4096"}}, {Memory::kPrivate, Memory::kArena}},
      {{{"reduce_path", "windows"}, {"window_bytes", "65536"}}, {Memory::kPrivate}},
      {{{"reduce_path", "windows"}, {"window_bytes", "0"}}, {Memory::kPrivate}},
  };
  for (const auto& [path, memories] : kPaths) {
    for (const Memory memory : memories) {
      for (const char* threshold : {"0", "4096", ""}) {
        for (const Pairs& controller : kControllers) {
          Pairs settings = With(path, controller);
          if (*threshold) settings.emplace_back("fusion_threshold", threshold);
          ways.push_back({std::move(settings), memory});
        }
      }
    }
  }
  return ways;
}

/// Runs every `stride`-th way, beginning with way `first`.
void CheckWays(int ranks, size_t first, size_t stride) {
  const Work work(ranks);
  const std::vector<Way> ways = Ways();
  for (size_t way = first; way < ways.size(); way += stride) {
    (void)CheckJob(work, ranks, ways[way].settings, ways[way].memory, static_cast<uint32_t>(way));
  }
}

// Hosts whose sums are nodes of the tree over all ranks, and others: where they are, the stages
// inside hosts are those of one host.
TEST(several_hosts) {
  struct Hosts {
    const char* hosts;
    int ranks;
    bool composes;
  };
  for (const Hosts& hosts : {Hosts{"2+2", 4, true}, Hosts{"2+2+2", 6, true}, Hosts{"3+1", 4, false},
                             Hosts{"4+4", 8, true}}) {
    const Work work(hosts.ranks);
    uint32_t seed = 0;
    for (const Memory memory : {Memory::kArena, Memory::kEveryOther, Memory::kPrivate}) {
      for (const char* window : {"0", "4096"}) {
        const Pairs settings = {
            {"simulated_hosts", hosts.hosts}, {"reduction", "canonical"}, {"window_bytes", window}};
        const uint64_t composed = CheckJob(work, hosts.ranks, settings, memory, ++seed);
        CHECK_EQ(composed > 0, hosts.composes);
      }
    }
  }
}

TEST(two_ranks) { CheckWays(2, 0, 1); }
TEST(three_ranks) { CheckWays(3, 0, 1); }
// Strides that have no factor with the number of thresholds and controllers: each of these is
// sampled, and with a stride of 5 every path in every memory.
TEST(four_ranks) { CheckWays(4, 1, 5); }
TEST(eight_ranks) { CheckWays(8, 2, 5); }
TEST(sixteen_ranks) { CheckWays(16, 3, 17); }

}  // namespace
}  // namespace horoacc::testing
