#pragma once
// The root of the message controller: makes decisions of the calls that are ready on every rank. It
// has no links and no locks, so that a test moves it by hand.
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "negotiate/decider.h"
#include "negotiate/told_buckets.h"

namespace horoacc {

/// Every function returns the decisions that it brings about, in their order. A call that finds no
/// execution slot waits inside: then `starving`, and Retry goes on with it.
class TreeRoot {
 public:
  using Verdicts = std::vector<Decision>;

  TreeRoot(SetSegment& control, const SetContext& context, const Settings& settings,
           std::vector<int> global_ranks);

  /// A call has come up from all branches, but for those that have joined.
  [[nodiscard]] Verdicts Ready(TensorKey key);
  /// Ends a call that can never become ready, unless it has become ready meanwhile.
  [[nodiscard]] Verdicts Reject(TensorKey key, Error error);
  /// All ranks have joined, `last` (global) as the last of them.
  [[nodiscard]] Verdicts Joined(int last, uint64_t unnamed);
  /// A rank is blocked and has submitted only a part of a bucket (its index in the plan), of which
  /// `witness` is one. A witness that has run meanwhile says nothing about the next round.
  [[nodiscard]] Verdicts Split(uint32_t bucket, TensorKey witness);
  [[nodiscard]] Verdicts Retry();
  [[nodiscard]] bool starving() const { return !backlog_.empty(); }

  /// The buckets whose members have changed since the last call.
  [[nodiscard]] std::vector<BucketMembers<uint32_t>> TakePlanChanges() {
    return plan_changes_.Take(plan_, [](uint32_t id) { return id; });
  }

 private:
  struct Waiting {
    enum class Kind : uint8_t { kReady, kRejected, kJoined };
    Kind kind = Kind::kReady;
    TensorKey key{};
    Error error = MakeError(ErrorKind::kOk, "");
    int last_joined = -1;
    uint64_t unnamed = 0;
  };
  /// False if it has to wait, for a slot or for a rank that lags.
  bool Decide(const Waiting& item, Verdicts& verdicts);
  bool DecideReady(TensorKey key, Verdicts& verdicts);
  bool EndJoin(const Waiting& item, Verdicts& verdicts);
  [[nodiscard]] bool AnyLags(TensorKey key) const;
  void Skip(TensorKey key, Decision decision, Verdicts& verdicts);
  void Run(const Bucket& ids, Verdicts& verdicts);

  SetSegment& control_;
  const SetContext& context_;
  Decider decider_;
  std::vector<std::byte> plan_memory_;
  PlanState plan_;
  std::vector<uint64_t>
      last_;  ///< by id: the last generation that was ready everywhere or rejected
  std::vector<uint32_t> id_versions_;  ///< by id: of the name that the plan knows
  std::deque<Waiting> backlog_;
  PlanChanges<uint32_t> plan_changes_;
};

}  // namespace horoacc
