// From elements to accumulators and back: every 16-bit float, and integers at their ends, with
// every instruction set of this CPU.
#include <cstring>
#include <limits>
#include <random>

#include "execute/kernels/reduce.h"
#include "execute/kernels/reduce_plan.h"
#include "execute/reduce_oracle.h"
#include "support/check.h"

using namespace horoacc;

namespace {

template <typename Small>
void EveryHalf(DType type) {
  std::vector<uint16_t> halves(65536 + 3);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const KernelSet& kernels : KernelSetsHere()) {
    std::vector<float> wide(halves.size());
    kernels.cast({type, true, halves.data(), wide.data(), halves.size()});
    for (size_t i = 0; i < halves.size(); ++i) {
      CHECK(oracle::SameValue(wide[i], static_cast<float>(Small{halves[i]})));
    }
    std::vector<uint16_t> back(halves.size());
    kernels.cast({type, false, wide.data(), back.data(), wide.size()});
    CHECK_EQ(oracle::FirstDifference(back.data(), halves.data(), halves.size(), type),
             halves.size());
  }
}

template <typename Small>
void RoundsToEven(DType type) {
  std::mt19937 random(7);
  std::vector<float> wide(4099);
  for (float& value : wide) {
    const auto bits = static_cast<uint32_t>(random());
    std::memcpy(&value, &bits, sizeof value);
  }
  for (const KernelSet& kernels : KernelSetsHere()) {
    std::vector<uint16_t> narrow(wide.size());
    kernels.cast({type, false, wide.data(), narrow.data(), wide.size()});
    for (size_t i = 0; i < wide.size(); ++i) {
      CHECK(oracle::SameValue(Small{narrow[i]}, Small::Round(wide[i])));
    }
  }
}

template <typename T>
void Integers(DType type) {
  std::mt19937 random(7);
  std::vector<T> values = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), 0, 1};
  while (values.size() < 261) values.push_back(static_cast<T>(random()));
  CHECK(AccumulatorOf(type) == DType::kInt64);
  for (const KernelSet& kernels : KernelSetsHere()) {
    std::vector<int64_t> wide(values.size());
    kernels.cast({type, true, values.data(), wide.data(), values.size()});
    for (size_t i = 0; i < values.size(); ++i) CHECK_EQ(wide[i], int64_t{values[i]});
    for (int64_t& value : wide) value += int64_t{1} << 40;  // what does not fit wraps
    std::vector<T> back(values.size());
    kernels.cast({type, false, wide.data(), back.data(), wide.size()});
    CHECK(back == values);
  }
}

}  // namespace

TEST(halves) {
  EveryHalf<oracle::Half>(DType::kFloat16);
  EveryHalf<oracle::BHalf>(DType::kBFloat16);
  RoundsToEven<oracle::Half>(DType::kFloat16);
  RoundsToEven<oracle::BHalf>(DType::kBFloat16);
}

TEST(integers) {
  Integers<uint8_t>(DType::kUInt8);
  Integers<int8_t>(DType::kInt8);
  Integers<int16_t>(DType::kInt16);
  Integers<int32_t>(DType::kInt32);
}

TEST(types_that_accumulate_in_themselves) {
  for (const DType type : {DType::kBool, DType::kInt64, DType::kFloat32, DType::kFloat64,
                           DType::kComplex64, DType::kComplex128}) {
    CHECK(AccumulatorOf(type) == type);
  }
}
