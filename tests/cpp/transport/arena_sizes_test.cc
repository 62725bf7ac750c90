// The set of sizes that TensorFlow's threads share.
#include "../../tensorflow_ops/arena_sizes.h"

#include <memory>
#include <thread>
#include <vector>

#include "support/check.h"

namespace horoacc::testing {
namespace {

// Some fall into one another's slots.
constexpr size_t SizeOf(size_t index) { return (index + 1) << 12; }

TEST(it_holds_what_was_added_and_nothing_else) {
  const auto sizes = std::make_unique<ArenaSizes>();
  CHECK(!sizes->Contains(0));
  CHECK(!sizes->Contains(SizeOf(0)));
  sizes->Add(0);
  for (size_t index = 0; index < 1000; index += 2) sizes->Add(SizeOf(index));
  for (size_t index = 0; index < 1000; ++index)
    CHECK_EQ(sizes->Contains(SizeOf(index)), index % 2 == 0);
  CHECK(!sizes->Contains(0));
}

TEST(threads_add_the_same_sizes) {
  constexpr size_t kSizes = 1500;  // each counts once, or there would be no room
  const auto sizes = std::make_unique<ArenaSizes>();
  {
    std::vector<std::jthread> threads;
    for (size_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (size_t turn = 0; turn < kSizes; ++turn) {
          const size_t size = SizeOf((turn + thread * kSizes / 8) % kSizes);
          sizes->Add(size);
          CHECK(sizes->Contains(size));
        }
      });
    }
  }
  for (size_t index = 0; index < kSizes; ++index) CHECK(sizes->Contains(SizeOf(index)));
  sizes->Add(SizeOf(kSizes));
  CHECK(sizes->Contains(SizeOf(kSizes)));
}

TEST(a_full_set_takes_no_more) {
  constexpr size_t kFew = 3000;
  const auto sizes = std::make_unique<ArenaSizes>();
  size_t held = 0;
  for (size_t index = 0; index < kFew; ++index) {
    sizes->Add(SizeOf(index));
    held += sizes->Contains(SizeOf(index)) ? 1 : 0;
  }
  CHECK(held > 1500);
  CHECK(held < kFew);
  CHECK(sizes->Contains(SizeOf(0)));
  CHECK(!sizes->Contains(SizeOf(kFew)));
}

}  // namespace
}  // namespace horoacc::testing
