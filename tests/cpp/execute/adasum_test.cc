// Adasum's kernels: the same bits from every instruction set, and the factors of the formula.
#include "execute/kernels/adasum.h"

#include <cmath>
#include <random>
#include <vector>

#include "execute/adasum_oracle.h"
#include "execute/kernels/half.h"
#include "execute/kernels/reduce_plan.h"
#include "support/check.h"

using namespace horoacc;
using oracle::Combined;
using oracle::Vector;

namespace {

std::vector<Vector> Vectors(size_t ranks, size_t count) {
  std::mt19937_64 random(ranks * 1000 + count);
  std::normal_distribution<double> normal;
  std::vector<Vector> vectors(ranks, Vector(count));
  for (Vector& vector : vectors) {
    for (double& x : vector) x = normal(random) + 0.3;
  }
  return vectors;
}

std::vector<const void*> Pointers(const std::vector<Vector>& vectors) {
  std::vector<const void*> pointers;
  for (const Vector& vector : vectors) pointers.push_back(vector.data());
  return pointers;
}

}  // namespace

TEST(FactorsAreThoseOfTheFormula) {
  for (const size_t ranks : {1, 2, 3, 4, 5, 7, 8, 16, 33}) {
    const auto vectors = Vectors(ranks, 1000);
    const auto pointers = Pointers(vectors);
    std::vector<TwoPartSum> products(ProductCount(ranks));
    AdasumProducts(pointers, 0, 1000, DType::kFloat64, products);
    const std::vector<double> factors = AdasumFactors(products, ranks);
    Vector result(1000);
    void* const destination = result.data();
    AdasumCombine(pointers, factors, {&destination, 1}, 0, 1000, DType::kFloat64);
    const Vector wanted = Combined(vectors, 0, ranks);
    for (size_t k = 0; k < 1000; ++k) CHECK(std::abs(result[k] - wanted[k]) < 1e-11);
  }
}

TEST(WhatHasCancelledCountsAsZeros) {
  // v and -v, then a third: its own length must not be divided by what rounding left.
  const std::vector<TwoPartSum> products = {{2.0}, {-2.0}, {2.0}, {0.1}, {-0.1}, {5.0}};
  const std::vector<double> factors = AdasumFactors(products, 3);
  CHECK_EQ(factors[0], 1.5);
  CHECK_EQ(factors[1], 1.5);
  CHECK_EQ(factors[2], 1.0);
  const std::vector<TwoPartSum> nothing(3);
  CHECK(AdasumFactors(nothing, 2) == std::vector<double>(2, 1.0));
  const std::vector<TwoPartSum> unknown = {{NAN}, {NAN}, {1.0}};
  CHECK(std::isnan(AdasumFactors(unknown, 2)[0]));
}

TEST(WhatNearlyCancelsHasADirection) {
  // Opposite but for 1e-8: a float64 sum of squares could not tell it from zeros.
  const std::vector<Vector> vectors = {{0.01, -0.01}, {-0.01 * (1 - 1e-8), 0.01}, {0.01, 0.01}};
  const auto pointers = Pointers(vectors);
  std::vector<TwoPartSum> products(ProductCount(3));
  AdasumProducts(pointers, 0, 2, DType::kFloat64, products);
  const std::vector<double> factors = AdasumFactors(products, 3);
  Vector result(2);
  void* const destination = result.data();
  AdasumCombine(pointers, factors, {&destination, 1}, 0, 2, DType::kFloat64);
  const Vector wanted = Combined(vectors, 0, 3);
  for (size_t k = 0; k < 2; ++k) CHECK(std::abs(result[k] - wanted[k]) < 1e-9);
  CHECK(std::abs(result[0] - 0.01) > 1e-4);
}

TEST(EveryInstructionSetGivesTheSameBits) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const size_t count : {1, 7, 8, 255, 256, 257, 1031}) {
      constexpr size_t kRanks = 5;
      std::vector<std::vector<std::byte>> inputs;
      std::vector<const void*> sources;
      for (const Vector& vector : Vectors(kRanks, count)) {
        std::vector<std::byte>& input = inputs.emplace_back(count * SizeOf(type));
        for (size_t k = 0; k < count; ++k) {
          const auto x = static_cast<float>(vector[k]);
          const uint16_t half = type == DType::kFloat16 ? FloatToHalf(x) : FloatToBFloat16(x);
          const void* from = SizeOf(type) == 2   ? static_cast<const void*>(&half)
                             : SizeOf(type) == 4 ? static_cast<const void*>(&x)
                                                 : static_cast<const void*>(&vector[k]);
          std::memcpy(input.data() + k * SizeOf(type), from, SizeOf(type));
        }
      }
      for (const auto& input : inputs) sources.push_back(input.data());
      std::vector<std::vector<TwoPartSum>> products;
      std::vector<std::vector<std::byte>> results;
      for (const KernelSet& kernels : KernelSetsHere()) {
        std::vector<double> scratch(ScratchDoubles(kRanks));
        std::vector<TwoPartSum>& found = products.emplace_back(ProductCount(kRanks));
        kernels.products({sources.data(), kRanks, 0, count, type, scratch.data(), found.data()});
        const std::vector<double> factors = AdasumFactors(found, kRanks);
        std::vector<std::byte>& result = results.emplace_back(count * SizeOf(type));
        void* const destination = result.data();
        kernels.combine({sources.data(), factors.data(), kRanks, &destination, 1, 0, count, type});
        CHECK(std::memcmp(found.data(), products.front().data(),
                          found.size() * sizeof(TwoPartSum)) == 0);
        CHECK(result == results.front());
      }
    }
  }
}
