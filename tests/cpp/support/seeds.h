#pragma once
// Seeds of tests that draw their cases.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace horoacc::check {

/// Drawn anew in each run, and told: what it finds it finds again with HOROACC_TEST_SEED.
inline uint64_t SeedOfTheDay() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("HOROACC_TEST_SEED");
    const uint64_t drawn = given != nullptr ? std::strtoull(given, nullptr, 10)
                                            : std::random_device()() % 1'000'000'000;
    std::printf("HOROACC_TEST_SEED=%llu\n", static_cast<unsigned long long>(drawn));
    std::fflush(stdout);
    return drawn;
  }();
  return seed;
}

/// In each round of a test: the cases of the first half are always the same.
template <typename Random>
void ReseedHalfway(Random& random, int round, int rounds) {
  if (round == rounds / 2) random.seed(SeedOfTheDay());
}

}  // namespace horoacc::check
