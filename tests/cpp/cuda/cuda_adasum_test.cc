// Adasum's kernels for GPUs, thread after thread on the host: the bits of the CPU's, wherever the
// elements are cut and whoever has which chunk.
#include <cstring>

#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/kernels/kernel_plan.h"
#include "execute/reduce_values.h"
#include "support/check.h"

using namespace horoacc;
using namespace horoacc::cuda;

namespace {

constexpr DType kTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

/// On a grid of a few threads.
struct Simulated {
  const AdasumPlan& plan;

  template <typename E>
  void Take() const {
    constexpr uint32_t kBlocks = 3, kThreads = 37;
    for (uint32_t block = kBlocks; block-- > 0;) {
      for (uint32_t thread = 0; thread < kThreads; ++thread)
        GridAdasum<E>(plan.args).Run({block, kBlocks, thread, kThreads});
    }
  }
};

void Run(const ha_cuda_adasum& job) {
  const auto plan = PlanAdasum(job);
  CHECK(plan.ok());
  ChooseAdasum(plan.value().type, Simulated{plan.value()});
}

/// Products of elements that `owners` ranks share in chunks, cut at multiples of `window`.
std::vector<TwoPartSum> Products(const Sources& sources, DType type, size_t count, size_t window,
                                 size_t owners) {
  const size_t pairs = ProductCount(sources.pointers().size());
  const size_t chunks = (count + kAdasumChunk - 1) / kAdasumChunk;
  const size_t places = (chunks + owners - 1) / owners;
  std::vector<std::vector<double>> sums(owners,
                                        std::vector<double>(places * pairs * kPairDoubles, NAN));
  for (size_t at = 0; at < count; at += window) {
    std::vector<const void*> from;
    for (const void* source : sources.pointers())
      from.push_back(static_cast<const char*>(source) + at * SizeOf(type));
    const size_t chunk = at / kAdasumChunk;
    for (size_t owner = 0; owner < owners; ++owner) {
      ha_cuda_adasum job{};
      job.sources = from.data();
      job.source_count = from.size();
      job.count = std::min(window, count - at);
      job.type = static_cast<int>(type);
      job.begun = at % kAdasumChunk;
      job.first = (owner + owners - chunk % owners) % owners;
      job.step = owners;
      const size_t place = (chunk + job.first) / owners * pairs * kPairDoubles;
      job.sums = sums[owner].data() + place;
      Run(job);
    }
  }
  std::vector<TwoPartSum> products;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    for (size_t pair = 0; pair < pairs; ++pair) {
      products.push_back(
          FoldLanes(sums[chunk % owners].data() + (chunk / owners * pairs + pair) * kPairDoubles));
    }
  }
  return products;
}

void CheckProducts(DType type, size_t ranks, size_t count) {
  const Sources sources(type, ranks, count);
  const size_t pairs = ProductCount(ranks);
  std::vector<TwoPartSum> wanted;
  for (size_t at = 0; at < count; at += kAdasumChunk) {
    wanted.resize(wanted.size() + pairs);
    AdasumProducts(sources.pointers(), at, std::min(at + kAdasumChunk, count), type,
                   std::span(wanted).last(pairs));
  }
  for (const size_t window : {size_t{4096}, size_t{40'008}, size_t{1} << 20}) {
    for (const size_t owners : {1, 3}) {
      const auto found = Products(sources, type, count, window, owners);
      CHECK_EQ(found.size(), wanted.size());
      CHECK_EQ(
          oracle::FirstDifference(found.data(), wanted.data(), 2 * found.size(), DType::kFloat64),
          2 * found.size());
    }
  }
}

void CheckCombination(DType type, size_t ranks, size_t count, bool in_place) {
  const Sources sources(type, ranks, count);
  std::vector<double> factors;
  for (size_t r = 0; r < ranks; ++r) factors.push_back(1 / (1.0 + static_cast<double>(r)));
  const size_t bytes = count * SizeOf(type);
  std::vector<char> wanted(bytes + 1);
  void* const to = wanted.data();
  AdasumCombine(sources.pointers(), factors, {&to, 1}, 0, count, type);
  std::vector<std::vector<char>> given, taken;
  std::vector<const void*> from;
  std::vector<void*> destinations;
  for (const void* source : sources.pointers()) {
    const auto* const first = static_cast<const char*>(source);
    from.push_back(given.emplace_back(first, first + bytes).data());
    destinations.push_back(in_place ? given.back().data() : taken.emplace_back(bytes).data());
  }
  ha_cuda_adasum job{};
  job.sources = from.data();
  job.source_count = ranks;
  job.count = count;
  job.type = static_cast<int>(type);
  job.step = 1;
  job.factors = factors.data();
  job.destinations = destinations.data();
  Run(job);
  for (const void* destination : destinations)
    CHECK_EQ(oracle::FirstDifference(destination, wanted.data(), count, type), count);
}

}  // namespace

TEST(ProductsHaveTheCpusBits) {
  for (const DType type : kTypes) {
    for (const size_t ranks : {1, 2, 5}) {
      for (const size_t count : {0, 1, 7, 4103, 140'001}) CheckProducts(type, ranks, count);
    }
    CheckProducts(type, kMostSources, 1003);
  }
}

TEST(CombinationsHaveTheCpusBits) {
  for (const DType type : kTypes) {
    for (const size_t ranks : {1, 2, 5, 64}) {
      for (const size_t count : {0, 1, 1003}) {
        CheckCombination(type, ranks, count, true);
        CheckCombination(type, ranks, count, false);
      }
    }
  }
}

TEST(WhatTheKernelsCannotIsRefused) {
  float value = 0;
  double sums[kPairDoubles] = {};
  const std::vector<const void*> sources(kMostSources + 1, &value);
  const ha_cuda_adasum good{
      sources.data(), 1, 1, static_cast<int>(DType::kFloat32), 0, 0, 1, sums, nullptr, nullptr};
  CHECK(PlanAdasum(good).ok());
  const auto refuses = [&](auto ha_cuda_adasum::* field, auto value_of_it) {
    ha_cuda_adasum job = good;
    job.*field = value_of_it;
    CHECK(!PlanAdasum(job).ok());
  };
  refuses(&ha_cuda_adasum::type, static_cast<int>(DType::kInt32));
  refuses(&ha_cuda_adasum::source_count, size_t{0});
  refuses(&ha_cuda_adasum::source_count, sources.size());
  refuses(&ha_cuda_adasum::begun, size_t{4});
  refuses(&ha_cuda_adasum::begun, kAdasumChunk);
  refuses(&ha_cuda_adasum::step, size_t{0});
  refuses(&ha_cuda_adasum::sums, static_cast<double*>(nullptr));
}
