// Packing and unpacking of GPUs, thread after thread on the host: any number of tensors, types,
// factors, tails and misalignments, against the definition.
#include "execute/cuda/kernels/kernel_choice.h"
#include "execute/cuda/kernels/kernel_plan.h"
#include "execute/reduce_oracle.h"
#include "execute/reduce_values.h"
#include "support/check.h"

using namespace horoacc;
using namespace horoacc::cuda;

namespace {

struct Simulated {
  const PackPlan& plan;
  uint32_t blocks;
  uint32_t threads;
  uint64_t* nonfinite;

  template <typename C>
  void Take() const {
    PackArgs args = plan.args;
    args.items = plan.items.data();
    for (uint32_t block = 0; block < blocks; ++block) {
      for (uint32_t thread = 0; thread < threads; ++thread) {
        *nonfinite += PackOnGrid<C>(args, {block, blocks, thread, threads});
      }
    }
  }
};

/// Runs the plan, and returns how many NaNs and infinities were written.
uint64_t Simulate(const PackPlan& plan, uint32_t blocks, uint32_t threads) {
  uint64_t nonfinite = 0;
  ChoosePack(plan.from, plan.to, plan.as_bytes, Simulated{plan, blocks, threads, &nonfinite});
  return nonfinite;
}

float ToFloat(DType type, const char* at) {
  if (type == DType::kFloat32) return oracle::At<float>(at, 0);
  if (type == DType::kFloat16) return static_cast<float>(oracle::At<oracle::Half>(at, 0));
  return static_cast<float>(oracle::At<oracle::BHalf>(at, 0));
}

/// The expected element, and whether it is finite.
bool Expect(DType from, DType to, double factor, const char* in, char* out) {
  if (from == DType::kFloat64) {
    const double value = oracle::At<double>(in, 0) * factor;
    std::memcpy(out, &value, sizeof(value));
    return std::isfinite(value);
  }
  const float scaled = ToFloat(from, in) * static_cast<float>(factor);
  if (to == DType::kFloat16) {
    const auto half = oracle::Half::Round(scaled);
    std::memcpy(out, &half, sizeof(half));
    return std::isfinite(static_cast<float>(half));
  }
  if (to == DType::kBFloat16) {
    const auto half = oracle::BHalf::Round(scaled);
    std::memcpy(out, &half, sizeof(half));
    return std::isfinite(static_cast<float>(half));
  }
  std::memcpy(out, &scaled, sizeof(scaled));
  return std::isfinite(scaled);
}

/// One side of a batch: tensors one behind the other with gaps that must not change.
struct Side {
  std::vector<char> bytes;
  std::vector<size_t> at;

  Side(std::span<const size_t> counts, size_t unit, size_t off, size_t gap) {
    size_t end = 64 + off;
    for (const size_t count : counts) {
      at.push_back(end);
      end += count * unit + gap;
    }
    bytes.assign(end + 64, 'Z');
  }
};

std::vector<Tensor> TensorsOf(const Side& from, Side& to, std::span<const size_t> counts) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < counts.size(); ++i) {
    tensors.push_back({from.bytes.data() + from.at[i], to.bytes.data() + to.at[i], counts[i]});
  }
  return tensors;
}

void CheckBatch(DType from, DType to, double factor, bool counts_bad,
                std::span<const size_t> counts, size_t off, size_t gap, uint32_t blocks) {
  Side in(counts, SizeOf(from), off, gap);
  Side out(counts, SizeOf(to), 0, gap);
  Side expected = out;
  const Sources values(from, 1, 40000);
  uint64_t bad = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    std::memcpy(in.bytes.data() + in.at[i], values.pointers()[0], counts[i] * SizeOf(from));
    for (size_t k = 0; k < counts[i]; ++k) {
      bad += !Expect(from, to, factor, in.bytes.data() + in.at[i] + k * SizeOf(from),
                     expected.bytes.data() + expected.at[i] + k * SizeOf(to));
    }
  }
  const std::vector<Tensor> tensors = TensorsOf(in, out, counts);
  unsigned long long total = 0;
  const auto plan = PlanPack({tensors, from, to, factor, counts_bad ? &total : nullptr});
  CHECK(plan.ok());
  const uint64_t counted = Simulate(plan.value(), blocks, 16);
  if (counts_bad) CHECK_EQ(counted, bad);
  for (size_t i = 0; i < counts.size(); ++i) {
    CHECK_EQ(oracle::FirstDifference(out.bytes.data() + out.at[i],
                                     expected.bytes.data() + expected.at[i], counts[i], to),
             counts[i]);
    std::memcpy(out.bytes.data() + out.at[i], expected.bytes.data() + expected.at[i],
                counts[i] * SizeOf(to));
  }
  CHECK(out.bytes == expected.bytes);  // and nothing around the tensors
}

constexpr size_t kCounts[] = {1, 0, 3, 8, 15, 16, 17, 31, 33, 64, 100, 1000, 20000, 2, 40000};

}  // namespace

TEST(CopiesCastsAndFactors) {
  const std::pair<DType, DType> pairs[] = {
      {DType::kFloat32, DType::kFloat32}, {DType::kFloat64, DType::kFloat64},
      {DType::kFloat16, DType::kFloat16}, {DType::kBFloat16, DType::kBFloat16},
      {DType::kFloat32, DType::kFloat16}, {DType::kFloat32, DType::kBFloat16},
      {DType::kFloat16, DType::kFloat32}, {DType::kBFloat16, DType::kFloat32}};
  for (const auto& [from, to] : pairs) {
    for (const double factor : {1.0, 0.25, 1.0 / 3, 1000.0}) {
      for (const size_t off : {size_t{0}, SizeOf(from), size_t{3}}) {
        for (const size_t gap : {0, 4, 7}) {
          CheckBatch(from, to, factor, gap == 4, kCounts, off, gap, 3);
        }
      }
    }
  }
}

TEST(EveryTypeIsCopiedAsItIs) {
  for (int t = 0; t < kDTypeCount; ++t) {
    const auto type = static_cast<DType>(t);
    for (const size_t off : {0, 1, 2, 4, 8, 13}) {
      Side in(kCounts, SizeOf(type), off, 3);
      for (size_t i = 0; i < in.bytes.size(); ++i) in.bytes[i] = static_cast<char>(i * 7 + i / 251);
      Side out(kCounts, SizeOf(type), 0, 5);
      Side expected = out;
      for (size_t i = 0; i < std::size(kCounts); ++i) {
        std::memcpy(expected.bytes.data() + expected.at[i], in.bytes.data() + in.at[i],
                    kCounts[i] * SizeOf(type));
      }
      const std::vector<Tensor> tensors = TensorsOf(in, out, kCounts);
      const auto plan = PlanPack({tensors, type, type});
      CHECK(plan.ok() && plan.value().as_bytes);
      Simulate(plan.value(), 5, 32);
      CHECK(out.bytes == expected.bytes);
    }
  }
}

TEST(TwoThousandTensorsAreOneLaunch) {
  const std::vector<size_t> counts(2000, 13);
  for (const uint32_t blocks : {1U, 7U, 2000U, 3000U}) {
    CheckBatch(DType::kFloat32, DType::kBFloat16, 0.5, true, counts, 4, 2, blocks);
  }
}

TEST(TilesFindTheirTensors) {
  const std::vector<size_t> counts{1, kTileBytes / 4, kTileBytes / 4 + 1, 5, 3 * kTileBytes / 4};
  const float value = 0;
  std::vector<Tensor> tensors;
  for (const size_t count : counts) tensors.push_back({&value, nullptr, count});
  auto plan = PlanPack({tensors, DType::kFloat32, DType::kFloat32}).value();
  CHECK_EQ(plan.args.tiles, 1 + 1 + 2 + 1 + 3);
  plan.args.items = plan.items.data();
  const uint32_t owners[] = {0, 1, 2, 2, 3, 4, 4, 4};
  for (size_t tile = 0; tile < plan.args.tiles; ++tile) {
    CHECK_EQ(ItemOf(plan.args, tile), owners[tile]);
  }
}

TEST(TilesOfATensorAreAlike) {
  const char value = 0;
  for (const DType type : {DType::kUInt8, DType::kFloat32}) {
    for (const size_t count : {size_t{1}, kTileBytes + 1, size_t{33554}, size_t{10'000'000}}) {
      const Tensor tensor{&value, nullptr, count};
      const auto plan = PlanPack({{&tensor, 1}, type, type}).value();
      const PackItem& item = plan.items[0];
      CHECK(item.tile <= kTileBytes && item.tile % kTileGrain == 0);
      // No tile is empty, and the last one lacks less than a grain of each.
      CHECK(item.tile * (plan.args.tiles - 1) < item.count);
      CHECK(item.tile * plan.args.tiles < item.count + kTileGrain * plan.args.tiles);
    }
  }
}

TEST(WhatTheKernelsDoNotDoIsRefused) {
  const auto refuses = [](const PackJob& job, const char* why) {
    const auto plan = PlanPack(job);
    CHECK(!plan.ok());
    CHECK_EQ(plan.error().kind, ErrorKind::kUnsupported);
    CHECK(plan.error().message.find(why) != std::string::npos);
  };
  unsigned long long total = 0;
  refuses({{}, DType::kFloat16, DType::kBFloat16}, "no cast from float16 to bfloat16");
  refuses({{}, DType::kFloat64, DType::kFloat32}, "no cast from float64 to float32");
  refuses({{}, DType::kInt32, DType::kInt32, 0.5}, "copies of int32 are not scaled");
  refuses({{}, DType::kInt32, DType::kInt32, 1, &total}, "copies of int32 are not scaled");
  CHECK(PlanPack({{}, DType::kInt32, DType::kInt32}).value().items.empty());
}
