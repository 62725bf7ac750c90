// Buckets when something comes between: waits, errors, members that stay away, a plan that is full.
#include <random>
#include <set>
#include <vector>

#include "fuse/plan.h"
#include "support/check.h"
#include "support/plan_model.h"

namespace horoacc::testing {
namespace {

TEST(a_split_bucket_runs_member_by_member_for_one_round) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {10, 10, 10});
  std::mt19937 random(7);
  for (int step = 0; step < 2; ++step) (void)model.FirstStep(*plan, random);
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[2], 1})), "");
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[0], 1})), "");
  const uint32_t bucket = plan->items[0].bucket;
  CHECK_EQ(Text({SplitBucket(*plan, bucket)}), "( 0 2 )");
  CHECK(SplitBucket(*plan, bucket).empty());
  CHECK_EQ(Text(TakeReady(*plan, {&model.items[1], 1})), "( 1 )");
  // The next round is whole again.
  CHECK_EQ(Text(model.ShuffledStep(*plan, random)), "( 0 1 2 )");
}

TEST(a_bucket_goes_on_without_members_that_stay_away) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {10, 10, 10, 10});
  std::mt19937 random(8);
  for (int step = 0; step < 2; ++step) (void)model.FirstStep(*plan, random);
  // Tensor 1 has left the model; whoever waits splits its bucket, once.
  (void)model.Step(*plan, {3, 0, 2}, random);
  CHECK_EQ(Text({SplitBucket(*plan, plan->items[0].bucket)}), "( 0 2 3 )");
  for (int step = 0; step < 3; ++step)
    CHECK_EQ(Text(model.Step(*plan, {2, 3, 0}, random)), "( 0 2 3 )");
  // It comes back: first on its own, then in a bucket of its own.
  CHECK_EQ(Text(model.Step(*plan, {1}, random)), "( 1 )");
  for (int step = 0; step < 2; ++step) {
    CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text({{0, 2, 3}, {1}}));
  }
}

TEST(an_error_frees_the_members_that_waited_for_the_failed_one) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {10, 10, 10});
  std::mt19937 random(9);
  CHECK(SkipItem(*plan, 0).empty());  // in no bucket yet
  for (int step = 0; step < 2; ++step) (void)model.FirstStep(*plan, random);
  CHECK_EQ(Text(model.Step(*plan, {2}, random)), "");
  CHECK_EQ(Text({SkipItem(*plan, 0)}), "( 2 )");
  CHECK_EQ(Text(model.Step(*plan, {1}, random)), "( 1 )");
  CHECK_EQ(Text(model.ShuffledStep(*plan, random)), "( 0 1 2 )");
  // An error in every member of a round leaves nothing behind.
  for (const uint32_t id : {1u, 0u, 2u}) CHECK(SkipItem(*plan, id).empty());
  CHECK_EQ(Text(model.ShuffledStep(*plan, random)), "( 0 1 2 )");
}

TEST(a_forgotten_id_leaves_its_bucket) {
  OwnedPlan plan(100);
  const Model model = Model::Of(100, {10, 10, 10});
  std::mt19937 random(10);
  for (int step = 0; step < 2; ++step) (void)model.FirstStep(*plan, random);
  ForgetItem(*plan, 1);
  CHECK_EQ(Text(model.Step(*plan, {2, 0}, random)), "( 0 2 )");
  // Its next owner is a tensor that was never seen.
  CHECK_EQ(Text(model.Step(*plan, {1}, random)), "( 1 )");
  CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text({{0, 2}, {1}}));
  for (const uint32_t id : {0u, 1u, 2u}) ForgetItem(*plan, id);
  CHECK_EQ(Text(Sorted(model.FirstStep(*plan, random))), Text({{0}, {1}, {2}}));
  CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text({{0, 1, 2}}));
}

// Many names, each used for a while: the plan fills up, and then tensors run loose, each once.
TEST(a_full_plan_still_runs_everything) {
  constexpr size_t kFew = 8;
  OwnedPlan plan(1000, kFew);
  for (uint32_t round = 0; round < 20; ++round) {
    for (uint32_t id = 0; id < kFew; ++id) {
      const ReadyItem item{id, round * kFew + id, round, 4, true};
      for (int step = 0; step < 3; ++step) {
        const Buckets ran = TakeReady(*plan, {&item, 1});
        if (ran.empty()) {
          CHECK_EQ(Text({SplitBucket(*plan, plan->items[id].bucket)}), Text({{id}}));
        } else {
          CHECK_EQ(Text(ran), Text({{id}}));
        }
      }
    }
    ForgetItem(*plan, round % kFew);
  }
}

// Names come and go: what they leave behind is used again, and new tensors are fused as ever.
TEST(a_plan_never_stays_full) {
  constexpr size_t kFew = 8;
  OwnedPlan plan(1000, kFew);
  for (uint32_t round = 0; round < 50; ++round) {
    const uint32_t a = 2 * round % kFew;
    const uint32_t b = a + 1;
    for (const uint32_t id : {a, b}) ForgetItem(*plan, id);
    const std::vector<ReadyItem> both = {{a, 10 * round + 1, round, 4, true},
                                         {b, 10 * round + 2, round, 4, true}};
    CHECK_EQ(Text(TakeReady(*plan, both)), Text({{a, b}}));  // as they come
    const uint32_t before = *plan->version;
    CHECK_EQ(Text(TakeReady(*plan, {&both[0], 1})), "");
    CHECK(*plan->version != before);
    CHECK_EQ(Text(TakeReady(*plan, {&both[1], 1})), Text({{a, b}}));
    CHECK_EQ(Text(TakeReady(*plan, {&both[1], 1})), "");
    CHECK_EQ(Text(TakeReady(*plan, {&both[0], 1})), Text({{a, b}}));
    CHECK(*plan->bucket_count <= kFew);
    // The buckets of others have moved, but not changed.
    for (uint32_t id = 0; id < kFew; id += 2) {
      if (plan->items[id].bucket == 0) continue;
      const ReadyItem first{id, 0, 0, 4, true};
      const ReadyItem second{id + 1, 0, 0, 4, true};
      CHECK_EQ(Text(TakeReady(*plan, {&second, 1})), "");
      CHECK_EQ(Text(TakeReady(*plan, {&first, 1})), Text({{id, id + 1}}));
    }
  }
}

/// Keeps account of what became ready and what ran.
class Account {
 public:
  void Ready(uint32_t id) { CHECK(open_.insert(id).second); }
  void Ran(const Bucket& bucket) {
    for (const uint32_t id : bucket) CHECK_EQ(open_.erase(id), 1);
  }
  [[nodiscard]] const std::set<uint32_t>& open() const { return open_; }

 private:
  std::set<uint32_t> open_;
};

// Splits and errors anywhere: whatever is ready runs exactly once, and once the disturbances
// end, the buckets are those of the model again.
TEST(disturbances_lose_nothing_and_heal) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const Model model = Model::Random(random);
    OwnedPlan plan(model.threshold);
    for (int step = 0; step < 2; ++step) (void)model.FirstStep(*plan, random);
    Account account;
    for (int step = 0; step < 6; ++step) {
      std::vector<ReadyItem> order = model.items;
      std::ranges::shuffle(order, random);
      for (const ReadyItem& item : order) {
        if (random() % 8 == 0) {
          account.Ran(SkipItem(*plan, item.id));  // this tensor ends in an error
        } else {
          account.Ready(item.id);
          for (const Bucket& bucket : TakeReady(*plan, {&item, 1})) account.Ran(bucket);
        }
        if (random() % 6 == 0 && *plan->bucket_count > 0) {
          account.Ran(SplitBucket(*plan, 1 + random() % *plan->bucket_count));
        }
      }
      // Every step ends with somebody waiting: nothing may be left after the splits.
      for (const uint32_t id : std::set<uint32_t>(account.open())) {
        if (account.open().contains(id)) account.Ran(SplitBucket(*plan, plan->items[id].bucket));
      }
      CHECK(account.open().empty());
    }
    // The last splits may have met a round that was about to begin.
    CHECK(Flat(model.ShuffledStep(*plan, random)) == IdsOf(model));
    for (int step = 0; step < 3; ++step) {
      CHECK_EQ(Text(Sorted(model.ShuffledStep(*plan, random))), Text(Sorted(model.Expected())));
    }
  }
}

}  // namespace
}  // namespace horoacc::testing
