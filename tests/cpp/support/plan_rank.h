#pragma once
// A rank that reduces a few tensors by a locked plan, round after round.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/locked_plan.h"
#include "support/check.h"

namespace horoacc::testing {

inline constexpr size_t kTensors = 3;
inline constexpr uint64_t kBucketBytes =
    2 * sizeof(int32_t);  // so the tensors are buckets of 2 and of 1
inline const std::vector<std::string> kNames = {"a", "b", "c"};

inline Submission Sum() {
  Submission call;
  call.request.collective = Collective::kAllreduce;
  call.request.op = ReduceOp::kSum;
  return call;
}

/// Tensors of a rank that are reduced round after round.
class PlanRank {
 public:
  using Make = std::function<std::unique_ptr<LockedPlan>()>;

  /// `elements`: numbers of each tensor in `memory`, all the same.
  PlanRank(int rank, int ranks, Make make, int32_t* memory, int64_t elements = 1)
      : rank_(rank),
        ranks_(ranks),
        make_(std::move(make)),
        memory_(memory),
        elements_(elements),
        plan_(make_()) {}

  [[nodiscard]] LockedPlan& plan() { return *plan_; }
  void Submit(size_t index, Dims shape = {1}) {
    int32_t* const data = Of(index);
    std::fill_n(data, elements_, ValueOf(index, ++round_[index], rank_));
    if (elements_ > 1) shape.push_back(elements_);
    const Status taken = plan_->Submit(index, {DType::kInt32, shape}, {data, data});
    if (!taken.ok()) failed_ = taken.error();
  }
  /// False: it has to wait for another rank. Ranks wait in different orders.
  bool WaitAll(int64_t deadline_ns = 0) {
    for (size_t n = 0; n < kTensors; ++n) {
      const size_t index = rank_ % 2 == 0 ? n : kTensors - 1 - n;
      if (!plan_->InFlight(index)) continue;
      const Status outcome = plan_->Wait(index, deadline_ns);
      if (plan_->InFlight(index)) return false;
      if (!outcome.ok()) {
        failed_ = outcome.error();
        continue;
      }
      int32_t sum = 0;
      for (int rank = 0; rank < ranks_; ++rank)
        sum += joined_[rank] ? 0 : ValueOf(index, round_[index], rank);
      CHECK(std::all_of(Of(index), Of(index) + elements_, [&](int32_t n) { return n == sum; }));
    }
    plan_->EndRound();
    return true;
  }
  void SubmitMissing() {
    const uint64_t round = *std::ranges::max_element(round_);
    for (size_t index = 0; index < kTensors; ++index) {
      if (round_[index] < round) Submit(index);
    }
  }
  void MakeAgain() {
    plan_.reset();
    plan_ = make_();
  }
  void Drop() { plan_.reset(); }
  [[nodiscard]] const std::optional<Error>& failed() const { return failed_; }
  /// From now on zeros come from this rank.
  void Joined(int rank, bool joined) { joined_[rank] = joined; }
  void SkipRounds(uint64_t rounds) {
    for (uint64_t& round : round_) round += rounds;
  }

 private:
  static int32_t ValueOf(size_t index, uint64_t round, int rank) {
    return static_cast<int32_t>(1000 * round + 10 * index + static_cast<uint64_t>(rank) + 1);
  }

  [[nodiscard]] int32_t* Of(size_t index) const {
    return memory_ + index * static_cast<size_t>(elements_);
  }

  const int rank_;
  const int ranks_;
  const Make make_;
  int32_t* const memory_;
  const int64_t elements_;
  std::unique_ptr<LockedPlan> plan_;
  std::vector<uint64_t> round_ = std::vector<uint64_t>(kTensors, 0);
  std::vector<bool> joined_ = std::vector<bool>(16, false);
  std::optional<Error> failed_;
};

inline constexpr int kUntilLocked =
    3;  // rounds with plan_rounds = 1; the third carries the proposal

}  // namespace horoacc::testing
