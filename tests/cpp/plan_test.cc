// From ready tensors to buckets: what may depend on arrival order, and what must not.
#include "fuse/plan.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "check.h"

namespace horoacc {
namespace {

constexpr size_t kIds = 128;

/// A plan in zeroed memory of its own.
class OwnedPlan {
 public:
  explicit OwnedPlan(uint64_t threshold, size_t ids = kIds)
      : memory_(std::make_unique<uint64_t[]>(PlanState::BytesFor(ids) / sizeof(uint64_t) + 1)),
        state_(PlanState::Over(reinterpret_cast<std::byte*>(memory_.get()), ids, threshold)) {}
  PlanState& operator*() { return state_; }
  PlanState* operator->() { return &state_; }

 private:
  std::unique_ptr<uint64_t[]> memory_;
  PlanState state_;
};

using Buckets = std::vector<Bucket>;

std::string Text(const Buckets& buckets) {
  std::string text;
  for (const Bucket& bucket : buckets) {
    text += "(";
    for (const uint32_t id : bucket) text += " " + std::to_string(id);
    text += " )";
  }
  return text;
}

Buckets Sorted(Buckets buckets) {
  std::ranges::sort(buckets);
  return buckets;
}

/// The tensors of a model, in the order in which the lowest rank submits them.
struct Model {
  uint64_t threshold = 0;
  std::vector<ReadyItem> items;

  /// Gradients of `bytes` each with ids 0, 1, 2, ...
  static Model Of(uint64_t threshold, const std::vector<uint64_t>& bytes,
                  const std::vector<uint32_t>& pauses = {}) {
    Model model{threshold, {}};
    for (uint32_t k = 0; k < bytes.size(); ++k) {
      model.items.push_back({k, k + 1, pauses.empty() ? 0 : pauses[k], bytes[k], true});
    }
    return model;
  }

  static Model Random(std::mt19937& random) {
    const auto draw = [&](uint32_t most) { return static_cast<uint32_t>(random() % (most + 1)); };
    std::vector<uint32_t> ids(kIds);
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::shuffle(ids, random);
    Model model{draw(3) == 0 ? 1 : draw(400), {}};
    const uint32_t count = 1 + draw(39);
    uint64_t sequence = draw(100);
    uint32_t pause = 0;
    for (uint32_t k = 0; k < count; ++k) {
      if (draw(9) == 0) pause += 1 + draw(2);
      sequence += 1 + draw(3);
      model.items.push_back({ids[k], sequence, pause, draw(4) == 0 ? 0 : draw(200), true});
    }
    if (model.threshold == 0) model.threshold = 1;
    return model;
  }

  /// The buckets that the documentation promises: in submission order, up to the threshold, never
  /// past a point where the lowest rank waited.
  [[nodiscard]] Buckets Expected() const {
    Buckets buckets;
    uint64_t bytes = 0;
    std::optional<uint32_t> pause;
    for (const ReadyItem& item : items) {
      if (pause != item.pause || bytes + item.bytes > threshold) {
        buckets.emplace_back();
        bytes = 0;
      }
      pause = item.pause;
      bytes += item.bytes;
      buckets.back().push_back(item.id);
    }
    return buckets;
  }

  /// Tensors become ready once each, in the given order, in random batches.
  [[nodiscard]] Buckets Step(PlanState& plan, const std::vector<size_t>& order,
                             std::mt19937& random) const {
    Buckets ran;
    for (size_t at = 0; at < order.size();) {
      const size_t batch = std::min<size_t>(order.size() - at, 1 + random() % 3);
      std::vector<ReadyItem> ready;
      for (size_t k = 0; k < batch; ++k) ready.push_back(items[order[at++]]);
      for (Bucket& bucket : TakeReady(plan, ready)) ran.push_back(std::move(bucket));
    }
    return ran;
  }

  /// A later step of the whole model, in a random order.
  [[nodiscard]] Buckets ShuffledStep(PlanState& plan, std::mt19937& random) const {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    Model later = *this;
    // Where the lowest rank is in its run by now is not where it was in the first step.
    for (ReadyItem& item : later.items) {
      item.sequence += 1000 + random() % 50;
      item.pause += random() % 5;
    }
    return later.Step(plan, order, random);
  }

  /// The first step: the lowest rank's sequence and pauses count.
  [[nodiscard]] Buckets FirstStep(PlanState& plan, std::mt19937& random) const {
    std::vector<ReadyItem> order = items;
    std::ranges::shuffle(order, random);
    Buckets ran;
    for (const ReadyItem& item : order) {
      for (Bucket& bucket : TakeReady(plan, {&item, 1})) ran.push_back(std::move(bucket));
    }
    return ran;
  }
};

std::vector<uint32_t> Flat(const Buckets& buckets) {
  std::vector<uint32_t> ids;
  for (const Bucket& bucket : buckets) ids.insert(ids.end(), bucket.begin(), bucket.end());
  std::ranges::sort(ids);
  return ids;
}

std::vector<uint32_t> IdsOf(const Model& model) {
  std::vector<uint32_t> ids;
  for (const ReadyItem& item : model.items) ids.push_back(item.id);
  std::ranges::sort(ids);
  return ids;
}

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

TEST(what_cannot_be_fused_runs_at_once_and_joins_no_bucket) {
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

TEST(an_error_frees_what_waited_for_the_failed_member) {
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
}  // namespace horoacc
