#pragma once
// The root of a set whose ranks share no memory: from what every rank has submitted to decisions.
// It has no links and no locks, so that a test moves it by hand.
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "fuse/plan.h"
#include "negotiate/spread_messages.h"

namespace horoacc {

/// What the root's own rank, the set's lowest, knows of a call that it has submitted: buckets are
/// in its order, and by its ids.
struct RootPlace {
  uint32_t id = 0;
  uint64_t sequence = 0;
  uint32_t pause = 0;
};

/// Every call returns the decisions that it brings about, in their order.
class SpreadRoot {
 public:
  using Verdicts = std::vector<SpreadDecision>;

  SpreadRoot(std::vector<int> global_ranks, uint64_t fusion_threshold);

  /// `seen`: decisions that the member had taken when it submitted the call. `place` of member 0.
  [[nodiscard]] Verdicts Ready(uint32_t member, const CallName& call, Request request,
                               uint64_t seen, const RootPlace& place = {});
  /// The member has joined, after all that it has submitted before.
  [[nodiscard]] Verdicts Joined(uint32_t member, uint64_t unnamed);
  /// The member waits: a bucket of which it has submitted only a part is split.
  [[nodiscard]] Verdicts Blocked(uint32_t member);
  /// Ends a call that can never become ready, unless it has become ready meanwhile.
  [[nodiscard]] Verdicts Reject(const CallName& call, Error error);
  /// Who has submitted a call that is not decided; nothing if nobody has.
  [[nodiscard]] std::optional<Attendance> WhoHas(const CallName& call) const;
  /// Of the join that is under way.
  [[nodiscard]] Attendance WhoHasJoined() const;

 private:
  struct Pending {
    std::vector<std::optional<Request>> requests;  ///< by member
    RootPlace place;
  };
  /// Ready on all ranks.
  struct Whole {
    CallName call;
    CallFacts facts;
    bool adasum = false;
  };

  [[nodiscard]] bool Complete(const Pending& pending) const;
  void Decide(const CallName& call, Pending pending, Verdicts& verdicts);
  [[nodiscard]] Error Compare(const CallName& call, const Pending& pending) const;
  [[nodiscard]] Error NeedsJoined(const CallName& call, const Pending& pending) const;
  [[nodiscard]] CallFacts FactsOf(const Pending& pending, bool partial) const;
  void Adopt(const CallName& call, uint32_t id, Verdicts& verdicts);
  void Skip(const CallName& call, Verdicts& verdicts);
  void Run(const Bucket& ids, Verdicts& verdicts);
  void Emit(SpreadDecision decision, Verdicts& verdicts);
  void EndJoin(Verdicts& verdicts);

  const std::vector<int> global_ranks_;
  std::map<CallName, Pending> pending_;
  std::map<uint32_t, Whole> whole_;        ///< by the root's id: not decided, for its bucket waits
  std::map<CallName, uint64_t> rejected_;  ///< decisions there were then, the rejection included
  std::vector<bool> joined_;
  int last_joined_ = -1;
  uint64_t unnamed_ = 0;
  uint64_t decided_ = 0;

  std::vector<std::byte> plan_memory_;
  PlanState plan_;
  std::vector<CallName> name_of_;  ///< by the root's id: which name the plan knows it by
  std::map<CallName, uint32_t> id_of_;
};

}  // namespace horoacc
