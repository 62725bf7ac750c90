// The same bits, whatever the way: every path, window, bucket, plane, memory and arrival order must
// give the sum along the balanced tree over rank numbers, accumulated in float32 for 16-bit types.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "ranks.h"
#include "reduce_oracle.h"

namespace horoacc::testing {
namespace {

using oracle::BHalf;
using oracle::Half;
using Bytes = std::vector<std::byte>;

constexpr DType kTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr int64_t kCounts[] = {1, 63, 1000, 5003, 40'000};
constexpr int kSteps = 3;

/// Numbers of many magnitudes and both signs: nearly every other order of addition gives other
/// bits.
double Draw(std::mt19937& random, DType type) {
  const double fraction = 1.0 + static_cast<double>(random()) / 4294967296.0;
  const int power = static_cast<int>(random() % (type == DType::kFloat16 ? 10 : 24));
  return std::ldexp(random() % 2 ? fraction : -fraction, power - 8);
}

template <typename T>
void Fill(std::mt19937& random, DType type, Bytes& bytes) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T value;
    if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(Draw(random, type));
    } else {
      value = T::Round(static_cast<float>(Draw(random, type)));
    }
    std::memcpy(&bytes[at], &value, sizeof value);
  }
}

/// The tree: n ranks split at the largest power of two below n.
template <typename Acc>
Acc TreeSum(const Acc* values, size_t count) {
  if (count == 1) return values[0];
  size_t left = 1;
  while (left * 2 < count) left *= 2;
  return TreeSum(values, left) + TreeSum(values + left, count - left);
}

template <typename T, typename Acc>
Bytes Sum(const std::vector<const Bytes*>& inputs, bool tree) {
  Bytes sum(inputs[0]->size());
  std::vector<Acc> values(inputs.size());
  for (size_t at = 0; at < sum.size(); at += sizeof(T)) {
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      T value;
      std::memcpy(&value, inputs[rank]->data() + at, sizeof value);
      values[rank] = static_cast<Acc>(value);
    }
    const Acc total = tree ? TreeSum(values.data(), values.size())
                           : std::accumulate(values.rbegin(), values.rend(), Acc{0});
    T rounded;
    if constexpr (std::is_same_v<T, Acc>) {
      rounded = total;
    } else {
      rounded = T::Round(total);
    }
    std::memcpy(&sum[at], &rounded, sizeof rounded);
  }
  return sum;
}

Bytes SumOf(DType type, const std::vector<const Bytes*>& inputs, bool tree = true) {
  switch (type) {
    case DType::kFloat16:
      return Sum<Half, float>(inputs, tree);
    case DType::kBFloat16:
      return Sum<BHalf, float>(inputs, tree);
    case DType::kFloat32:
      return Sum<float, float>(inputs, tree);
    default:
      return Sum<double, double>(inputs, tree);
  }
}

struct Tensor {
  std::string name;
  DType type;
  int64_t count;
};

/// A model and its inputs and sums, step by step. Made once for each number of ranks.
struct Work {
  explicit Work(int ranks) {
    for (const DType type : kTypes) {
      for (const int64_t count : kCounts) {
        tensors.push_back({std::string(NameOf(type)) + "." + std::to_string(count), type, count});
      }
    }
    std::mt19937 random(ranks);
    inputs.resize(kSteps);
    sums.resize(kSteps);
    for (int step = 0; step < kSteps; ++step) {
      inputs[step].resize(tensors.size());
      for (size_t t = 0; t < tensors.size(); ++t) {
        const Tensor& tensor = tensors[t];
        std::vector<const Bytes*> all;
        inputs[step][t].resize(ranks);
        for (Bytes& bytes : inputs[step][t]) {
          bytes.resize(static_cast<size_t>(tensor.count) * SizeOf(tensor.type));
          FillAny(random, tensor.type, bytes);
          all.push_back(&bytes);
        }
        sums[step].push_back(SumOf(tensor.type, all));
        // Otherwise the tests below would show nothing. (The last places of a float32 sum are
        // mostly lost when it is rounded to 16 bits.)
        if (ranks > 2 && tensor.count >= 1000 && SizeOf(tensor.type) > 2) {
          CHECK(SumOf(tensor.type, all, false) != sums[step].back());
        }
      }
    }
  }

  static void FillAny(std::mt19937& random, DType type, Bytes& bytes) {
    switch (type) {
      case DType::kFloat16:
        return Fill<Half>(random, type, bytes);
      case DType::kBFloat16:
        return Fill<BHalf>(random, type, bytes);
      case DType::kFloat32:
        return Fill<float>(random, type, bytes);
      default:
        return Fill<double>(random, type, bytes);
    }
  }

  std::vector<Tensor> tensors;
  std::vector<std::vector<std::vector<Bytes>>> inputs;  ///< by step, tensor, rank
  std::vector<std::vector<Bytes>> sums;                 ///< by step, tensor
};

enum class Memory { kPrivate, kArena, kEveryOther };

/// One job of three steps in which every rank submits in an order and at times of its own.
void CheckJob(const Work& work, int ranks, const Pairs& settings, Memory memory, uint32_t seed) {
  RunRanks(ranks, settings, [&](Engine& engine, int rank) {
    std::mt19937 random(seed * 100 + rank);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<size_t> order(work.tensors.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::shuffle(order, random);
      std::vector<std::byte*> buffers(work.tensors.size());
      std::vector<Bytes> own(work.tensors.size());
      std::vector<uint64_t> handles(work.tensors.size());
      for (const size_t t : order) {
        const Tensor& tensor = work.tensors[t];
        const Bytes& input = work.inputs[step][t][rank];
        const bool shared = memory == Memory::kArena || (memory == Memory::kEveryOther && t % 2);
        if (shared) {
          buffers[t] = static_cast<std::byte*>(engine.AllocateShared(input.size()));
          CHECK(buffers[t] != nullptr);
        } else {
          own[t].resize(input.size());
          buffers[t] = own[t].data();
        }
        std::memcpy(buffers[t], input.data(), input.size());
        if (random() % 6 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        }
        auto handle = engine.Submit(Make(Collective::kAllreduce, tensor.name, tensor.type,
                                         {tensor.count}, buffers[t], buffers[t]));
        CHECK(handle.ok());
        handles[t] = handle.value();
      }
      for (size_t t = 0; t < work.tensors.size(); ++t) {
        CHECK(WaitAndRelease(engine, handles[t]).ok());
        const Bytes& expected = work.sums[step][t];
        if (std::memcmp(buffers[t], expected.data(), expected.size()) != 0) {
          std::string text = work.tensors[t].name + " differs on rank " + std::to_string(rank) +
                             " of " + std::to_string(ranks) + " in step " + std::to_string(step) +
                             " with";
          for (const auto& [key, value] : settings) text += " " + key + "=" + value;
          check::Fail(__FILE__, __LINE__, text);
        }
        if (own[t].empty()) engine.FreeShared(buffers[t]);
      }
    }
  });
}

struct Way {
  Pairs settings;
  Memory memory;
};

/// Every combination of path, window, threshold, plane and memory that differs in what it does.
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
        for (const char* control : {"board", "tcp"}) {
          Pairs settings = path;
          settings.emplace_back("control", control);
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
    CheckJob(work, ranks, ways[way].settings, ways[way].memory, static_cast<uint32_t>(way));
  }
}

TEST(two_ranks) { CheckWays(2, 0, 1); }
TEST(three_ranks) { CheckWays(3, 0, 1); }
// Strides that have no factor with the number of thresholds and planes: each of these is sampled.
TEST(four_ranks) { CheckWays(4, 1, 5); }
TEST(eight_ranks) { CheckWays(8, 2, 7); }
TEST(sixteen_ranks) { CheckWays(16, 3, 17); }

}  // namespace
}  // namespace horoacc::testing
