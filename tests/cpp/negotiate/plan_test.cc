// From ready tensors to buckets: what may depend on arrival order, and what must not.
#include "fuse/plan.h"

#include <random>
#include <vector>

#include "support/check.h"
#include "support/plan_model.h"

namespace horoacc::testing {
namespace {

TEST(the_first_step_runs_tensors_as_they_come) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {60, 60, 30});
  for (const uint32_t id : {2u, 0u, 1u}) {
    CHECK_EQ(Text(TakeReady(*plan, {&model.items[id], 1})), Text({{id}}));
  }
}

TEST(a_batch_of_the_first_step_is_fused_in_the_lowest_ranks_order) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {60, 60, 30, 10});
  const std::vector<ReadyItem> batch = {model.items[3], model.items[0], model.items[2],
                                        model.items[1]};
  CHECK_EQ(Text(TakeReady(*plan, batch)), Text({{0}, {1, 2, 3}}));
}

TEST(buckets_fill_up_to_the_threshold) {
  const struct {
    uint64_t threshold;
    std::vector<uint64_t> bytes;
    Buckets expected;
  } kCases[] = {
      {100, {50, 50, 1}, {{0, 1}, {2}}},  // exactly full
      {100, {50, 51, 49, 51}, {{0}, {1, 2}, {3}}},
      {100, {500, 10, 10}, {{0}, {1, 2}}},  // above the threshold: alone
      {100, {10, 500, 10}, {{0}, {1}, {2}}},
      {100, {0, 0, 0}, {{0, 1, 2}}},  // empty tensors take no room
      {1, {1, 1, 0, 1}, {{0}, {1, 2}, {3}}},
  };
  std::mt19937 random(1);
  for (const auto& one : kCases) {
    OwnedPlan plan(one.threshold);
    const Model model = Model::Of(one.threshold, one.bytes);
    CHECK_EQ(Text(Sorted(model.Expected())), Text(one.expected));
    (void)model.FirstStep(*plan, random);
    for (int step = 0; step < 3; ++step) {
      CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text(one.expected));
    }
  }
}

TEST(a_threshold_of_zero_fuses_nothing) {
  OwnedPlan plan(0);
  const Model model = Model::Of(0, {8, 8, 8});
  std::mt19937 random(2);
  for (int step = 0; step < 4; ++step) {
    CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text({{0}, {1}, {2}}));
  }
}

TEST(buckets_end_where_the_lowest_rank_waited) {
  OwnedPlan plan(1000);
  const Model model = Model::Of(1000, {1, 1, 1, 1, 1}, {0, 0, 1, 1, 4});
  std::mt19937 random(3);
  (void)model.FirstStep(*plan, random);
  for (int step = 0; step < 3; ++step) {
    CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text({{0, 1}, {2, 3}, {4}}));
  }
}

TEST(a_bucket_runs_with_its_last_member_and_not_before) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {50, 50, 50, 50});
  std::mt19937 random(4);
  (void)model.FirstStep(*plan, random);
  (void)model.ShuffledStep(*plan, random);
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[3], 1})), "");
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[1], 1})), "");
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[0], 1})), "( 0 1 )");
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[2], 1})), "( 2 3 )");
}

TEST(a_tensor_that_cannot_be_fused_runs_at_once) {
  OwnedPlan plan(1000);
  Model model = Model::Of(1000, {1, 1, 1});
  model.items[1].fusable = false;
  std::mt19937 random(5);
  for (int step = 0; step < 4; ++step) {
    CHECK_EQ(Text(TakeReady(*plan, {&model.items[1], 1})), "( 1 )");
    const Bucket rest = {0, 2};
    const Buckets ran = model.Step(*plan, {2, 0}, random);
    if (step > 0) CHECK_EQ(Text(ran), Text({rest}));
  }
}

// Random models, arrival orders and batches: from the second step on only the model counts.
TEST(composition_depends_on_the_model_alone) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const Model model = Model::Random(random);
    OwnedPlan plan(model.threshold);
    CHECK(Flat(model.FirstStep(*plan, random)) == IdsOf(model));
    for (int step = 0; step < 4; ++step) {
      CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text(Sorted(model.Expected())));
    }
  }
}

TEST(a_tensor_that_comes_later_joins_at_its_own_second_submission) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {40, 40, 30, 30});
  std::mt19937 random(6);
  for (int step = 0; step < 3; ++step) (void)model.Step(*plan, {0, 1}, random);
  CHECK_EQ(Text(Sorted(model.Step(*plan, {3, 1, 2, 0}, random))), Text({{0, 1}, {2}, {3}}).c_str());
  for (int step = 0; step < 3; ++step) {
    CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text({{0, 1}, {2, 3}}));
  }
}

}  // namespace
}  // namespace horoacc::testing
