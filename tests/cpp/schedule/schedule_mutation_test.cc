// The prover catches what may go wrong: every single change to every step of every algorithm.
#include <functional>

#include "schedule/audit.h"
#include "support/check.h"

using namespace horoacc;
using namespace horoacc::schedule;

namespace {

struct Where {
  uint32_t rank, lane, k;
};

using Change = std::function<void(Step&)>;

// A schedule with one step that is changed, or missing if there is no change.
class Mutant final : public Schedule {
 public:
  Mutant(const Schedule& original, Where where, Change change)
      : Schedule(original.facts()),
        original_(original),
        where_(where),
        change_(std::move(change)) {}
  [[nodiscard]] uint32_t scratch(uint32_t rank) const override { return original_.scratch(rank); }
  [[nodiscard]] Part kept(uint32_t rank, uint32_t chunk) const override {
    return original_.kept(rank, chunk);
  }
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override {
    return original_.steps(rank, lane) - (!change_ && Here(rank, lane) ? 1 : 0);
  }
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override {
    if (!Here(rank, lane) || k < where_.k) return original_.step(rank, lane, k);
    if (!change_) return original_.step(rank, lane, k + 1);
    Step step = original_.step(rank, lane, k);
    if (k == where_.k) change_(step);
    return step;
  }

 private:
  [[nodiscard]] bool Here(uint32_t rank, uint32_t lane) const {
    return rank == where_.rank && lane == where_.lane;
  }
  const Schedule& original_;
  const Where where_;
  const Change change_;
};

std::vector<Plan> SmallPlans() {
  std::vector<Plan> plans;
  for (const std::vector<uint32_t>& hosts :
       {std::vector<uint32_t>{2, 2}, {2, 1}, {1, 3}, {3}, {1, 1, 1}, {2, 2, 2}, {3, 1, 2}}) {
    plans.push_back({.topology = Topology(hosts), .root = 1, .trees = 3});
  }
  return plans;
}

// Applies `change` to every step; `change` returns whether it makes any difference. The number of
// mutants, all of which were caught.
uint32_t AllAreCaught(const char* what, const std::function<bool(Step&, const Schedule&)>& change) {
  uint32_t mutants = 0;
  for (const Plan& plan : SmallPlans()) {
    for (const Algorithm& algorithm : Algorithms()) {
      const std::unique_ptr<Schedule> original = algorithm.make(plan);
      for (uint32_t rank = 0; rank < original->facts().ranks; ++rank) {
        for (uint32_t lane = 0; lane < original->facts().lanes; ++lane) {
          for (uint32_t k = 0; k < original->steps(rank, lane); ++k) {
            Step step = original->step(rank, lane, k);
            if (change && !change(step, *original)) continue;
            Change put;
            if (change) put = [&](Step& changed) { changed = step; };
            const Mutant mutant(*original, {rank, lane, k}, put);
            ++mutants;
            if (!AuditSchedule(mutant, algorithm, plan).ok()) continue;
            check::Fail(__FILE__, __LINE__,
                        std::string(what) + " survives: " + std::string(algorithm.name) +
                            ", rank " + std::to_string(rank) + ", lane " + std::to_string(lane) +
                            ", step " + std::to_string(k));
          }
        }
      }
    }
  }
  return mutants;
}

}  // namespace

TEST(a_dropped_step) { CHECK(AllAreCaught("a dropped step", nullptr) > 1000); }

// Every peer of a step, those behind the first too, becomes every other rank.
TEST(a_swapped_peer) {
  uint32_t mutants = 0;
  for (uint32_t index = 0; index < kMaxPeers; ++index) {
    for (uint32_t by = 1; by < 6; ++by) {
      mutants += AllAreCaught("a swapped peer", [&](Step& step, const Schedule& schedule) {
        const uint32_t ranks = schedule.facts().ranks;
        const bool range = (step.flags & (kReceiveRange | kSendRange)) != 0;
        if (range || index >= step.receives + step.sends || by >= ranks) return false;
        step.peer[index] = (step.peer[index] + by) % ranks;
        return true;
      });
    }
  }
  CHECK(mutants > 5000);
}

TEST(a_range_of_peers_that_is_shifted_or_longer) {
  uint32_t mutants = 0;
  for (const uint32_t index : {0u, 1u}) {
    mutants += AllAreCaught("a changed range", [&](Step& step, const Schedule&) {
      if ((step.flags & (kReceiveRange | kSendRange)) == 0) return false;
      ++step.peer[index];
      return true;
    });
  }
  CHECK(mutants > 100);
}

TEST(a_step_that_goes_to_itself) {
  const Plan plan = SmallPlans().front();
  const auto found = FindAlgorithm("ring");
  CHECK(found.ok());
  const auto original = found.value()->make(plan);
  const Mutant mutant(*original, {2, 0, 0}, [](Step& step) { step.peer[0] = 2; });
  CHECK(!AuditSchedule(mutant, *found.value(), plan).ok());
}

TEST(another_chunk) {
  const uint32_t read = AllAreCaught("a wrong source", [](Step& step, const Schedule& schedule) {
    if (step.src == Buffer::kNone || step.count == schedule.facts().chunks) return false;
    step.src_chunk = (step.src_chunk + 1) % schedule.facts().chunks;
    return true;
  });
  const uint32_t written =
      AllAreCaught("a wrong destination", [](Step& step, const Schedule& schedule) {
        if (step.dst == Buffer::kNone || step.count == schedule.facts().chunks) return false;
        step.dst_chunk = (step.dst_chunk + 1) % schedule.facts().chunks;
        return true;
      });
  CHECK(read > 500 && written > 500);
}

TEST(a_chunk_less) {
  CHECK(AllAreCaught("a chunk less", [](Step& step, const Schedule&) {
          --step.count;
          return true;
        }) > 1000);
}

TEST(another_buffer) {
  CHECK(AllAreCaught("a wrong buffer", [](Step& step, const Schedule& schedule) {
          // What a rank gathers of itself is the same in both.
          if (step.src == Buffer::kNone || schedule.facts().goal == Goal::kAllGather) return false;
          step.src = step.src == Buffer::kInput ? Buffer::kOutput : Buffer::kInput;
          return true;
        }) > 500);
}

TEST(factors_applied_twice_or_never) {
  for (const Flag flag : {kPrescaleOwn, kPrescaleReceived, kPostscale}) {
    CHECK(AllAreCaught("a factor", [flag](Step& step, const Schedule&) {
            step.flags ^= flag;
            return true;
          }) > 1000);
  }
}

TEST(a_stage_that_does_not_wait) {
  CHECK(AllAreCaught("a stage that does not wait", [](Step& step, const Schedule&) {
          return std::exchange(step.after, 0) != 0;
        }) > 50);
}

TEST(a_wrong_channel) {
  CHECK(AllAreCaught("a wrong channel", [](Step& step, const Schedule&) {
          if (!Receives(step) && !Sends(step)) return false;
          ++step.channel;
          return true;
        }) > 1000);
}

TEST(a_result_that_is_not_passed_on) {
  CHECK(AllAreCaught("a result that is not passed on", [](Step& step, const Schedule&) {
          if (step.op != Op::kRecvCopySend && step.op != Op::kRecvReduceCopySend) return false;
          step.op = step.op == Op::kRecvCopySend ? Op::kRecv : Op::kRecvReduce;
          step.sends = 0;
          return true;
        }) > 100);
}

TEST(scratch_that_is_reused_without_credit) {
  uint32_t found = 0;
  for (const Plan& plan : SmallPlans()) {
    for (const Algorithm& algorithm : Algorithms()) {
      const auto original = algorithm.make(plan);
      if (original->scratch(0) == 0) continue;
      CHECK(Prove(*original, {.windows = 3, .places = 1}).ok());
      const Result<Proof> careless = Prove(*original, {.windows = 3, .places = 1, .drains = false});
      if (careless.ok()) continue;
      CHECK(careless.error().message.find("overwrites") != std::string::npos);
      ++found;
    }
  }
  CHECK(found >= 7);
}

// One link whose credits nobody waits for. Where those of all links are needed, that shows on one
// of them; not on each, as later messages tell of earlier ones.
TEST(one_link_without_credit) {
  uint32_t found = 0;
  for (const Plan& plan : SmallPlans()) {
    for (const Algorithm& algorithm : Algorithms()) {
      const auto original = algorithm.make(plan);
      if (original->scratch(0) == 0) continue;
      const Result<Proof> right = Prove(*original, {.windows = 3, .places = 1});
      CHECK(right.ok());
      uint32_t on_links = 0;
      for (const LinkUse& link : right.value().links) {
        const Result<Proof> careless =
            Prove(*original, {.windows = 3, .places = 1, .careless = link});
        if (careless.ok()) continue;
        CHECK(careless.error().message.find("overwrites") != std::string::npos);
        ++on_links;
      }
      const bool needed = !Prove(*original, {.windows = 3, .places = 1, .drains = false}).ok();
      CHECK_EQ(on_links > 0, needed);
      found += on_links;
    }
  }
  CHECK(found >= 100);
}

TEST(sums_in_another_order) {
  // Any allreduce, said to add in the order of the ranks.
  class Pretender final : public Schedule {
   public:
    explicit Pretender(const Schedule& original)
        : Schedule(Ordered(original)), original_(original) {}
    [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override {
      return original_.steps(rank, lane);
    }
    [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override {
      return original_.step(rank, lane, k);
    }

   private:
    static Facts Ordered(const Schedule& original) {
      Facts facts = original.facts();
      facts.in_rank_order = true;
      return facts;
    }
    const Schedule& original_;
  };
  const Plan plan{.topology = Topology({3, 2}), .trees = 3};
  uint32_t caught = 0;
  for (const Algorithm& algorithm : Algorithms()) {
    if (algorithm.goal != Goal::kAllreduce) continue;
    const auto original = algorithm.make(plan);
    const bool in_order = Prove(Pretender(*original), {}).ok();
    CHECK_EQ(in_order, original->facts().in_rank_order);
    if (!in_order) ++caught;
  }
  CHECK_EQ(caught, 7u);
  // One pass over the ranks of one host is in their order.
  const auto one_host = FindAlgorithm("cpu_reduce").value()->make({.topology = Topology({5})});
  CHECK(Prove(Pretender(*one_host), {}).ok());
}

TEST(a_cycle_of_full_links) {
  // Two ranks that both send twice before they receive: right at depth 2, stuck at depth 1.
  class Impatient final : public Schedule {
   public:
    Impatient() : Schedule({.goal = Goal::kAllToAll, .ranks = 2, .chunks = 2}) {}
    [[nodiscard]] uint32_t steps(uint32_t, uint32_t) const override { return 5; }
    [[nodiscard]] Step step(uint32_t rank, uint32_t, uint32_t k) const override {
      Step step;
      const uint32_t other = 1 - rank;
      if (k == 4) {
        step.op = Op::kCopy;
        step.src = Buffer::kInput;
        step.dst = Buffer::kOutput;
        step.src_chunk = step.dst_chunk = rank;
        return step;
      }
      step.op = k < 2 ? Op::kSend : Op::kRecv;
      (k < 2 ? step.src : step.dst) = k < 2 ? Buffer::kInput : Buffer::kOutput;
      (k < 2 ? step.src_chunk : step.dst_chunk) = other;
      step.count = k % 2 == 0 ? 0 : 1;  // a signal, then the message
      (k < 2 ? step.sends : step.receives) = 1;
      step.peer[0] = other;
      return step;
    }
  };
  const Impatient schedule;
  CHECK(Prove(schedule, {.depth = 2}).ok());
  const Result<Proof> stuck = Prove(schedule, {.depth = 1});
  CHECK(!stuck.ok() && stuck.error().message.find("waits for ever") != std::string::npos);
}
