#pragma once
// The root of a set on several hosts: makes decisions of the calls that all ranks have submitted.
// It has no links and no locks, so that a test moves it by hand.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "negotiate/multi_host/multi_host_messages.h"
#include "negotiate/multi_host/told_buckets.h"

namespace horoacc {

/// The place of a call among the submissions of the root's own rank, the set's lowest: buckets are
/// in its order, and by its ids.
struct RootPlace {
  uint32_t id = 0;
  uint64_t sequence = 0;
  uint32_t sync_round = 0;
  Recurs recurs = Recurs::kNo;
};

/// Every call returns the decisions that it brings about, in their order.
class MultiHostRoot {
 public:
  using Verdicts = std::vector<MultiHostDecision>;

  /// `composes`: allreduces run composed, with windows unless all ranks' memory is shared.
  /// `grants`: calls of locked plans do, too, and are granted (grants.h). `nccl`: NCCL reduces what
  /// stays on GPUs.
  MultiHostRoot(std::vector<int> global_ranks, uint64_t fusion_threshold, bool composes = false,
                bool grants = false, bool nccl = false);

  /// Members have submitted a call. `seen`: decisions that they had taken by then. `place`: if
  /// member 0 is among them.
  [[nodiscard]] Verdicts Ready(const CallName& call, const ReadySet& ready_set, uint64_t seen,
                               const RootPlace& place = {});
  /// The member has joined, after all that it has submitted before.
  [[nodiscard]] Verdicts Joined(uint32_t member, uint64_t unnamed);
  /// A member waits that has submitted only a part of a bucket (its index in the plan), `witness`
  /// among it, and had taken `seen` decisions. If the witness has run meanwhile, that says nothing
  /// about the next round.
  [[nodiscard]] Verdicts Split(uint32_t bucket, const CallName& witness, uint64_t seen);
  /// Ends a call that can never become ready, unless it has become ready meanwhile.
  [[nodiscard]] Verdicts Reject(const CallName& call, Error error);
  /// Whether the call has been ended since its sender had taken `seen` decisions.
  [[nodiscard]] bool IsOver(const CallName& call, uint64_t seen) const {
    const auto rejected = rejected_.find(call);
    return rejected != rejected_.end() && seen < rejected->second;
  }
  /// No message of a sender that had taken fewer decisions comes any more.
  void ForgetOver(uint64_t seen) {
    std::erase_if(rejected_, [&](const auto& one) { return one.second <= seen; });
  }
  /// Whether calls are granted from now on.
  void Grant(bool grants) { grants_now_ = grants_ && grants; }
  /// A call that members had submitted ran without a decision: its bucket goes on without it.
  [[nodiscard]] Verdicts RanAlone(const CallName& call);
  /// The members that have submitted an undecided call; nothing if none has.
  [[nodiscard]] std::optional<Attendance> WhoHas(const CallName& call) const;
  /// Whether one of these members has submitted an undecided call.
  [[nodiscard]] bool HasAny(const CallName& call, std::span<const uint32_t> members) const {
    const auto pending = pending_.find(call);
    return pending != pending_.end() && std::ranges::any_of(members, [&](uint32_t member) {
             return pending->second.ready_set.Has(member);
           });
  }
  /// Of the join that is under way.
  [[nodiscard]] Attendance WhoHasJoined() const;
  /// The buckets whose members have changed since the last call.
  [[nodiscard]] std::vector<BucketMembers> TakePlanChanges() {
    return plan_changes_.Take(plan_, name_of_);
  }

 private:
  struct Pending {
    ReadySet ready_set;
    RootPlace place;
  };
  /// Ready on all ranks.
  struct Whole {
    CallName call;
    CallFacts facts;
    /// Calls of one kind are decided together.
    enum class Kind : uint8_t {
      kScheduled,
      kComposed,
      kComposedWindows,
      kComposedOnGpus,
      kNccl,
      kAdasum,
      kEager
    };
    Kind kind = Kind::kScheduled;
    bool granted = false;
  };

  [[nodiscard]] bool Complete(const Pending& pending) const;
  void Decide(const CallName& call, const Pending& pending, Verdicts& verdicts);
  /// Why the call cannot run; kOk: it can.
  [[nodiscard]] Error Refusal(const CallName& call, const ReadySet& ready_set) const;
  [[nodiscard]] CallFacts FactsOf(const ReadySet& ready_set, bool partial) const;
  void Adopt(const CallName& call, uint32_t id, Verdicts& verdicts);
  /// Whether the call has come often enough as it came before: then it may well do so again.
  [[nodiscard]] bool CameBefore(const CallName& call,
                                const std::shared_ptr<const Request>& request);
  void Abandon(uint32_t id, Verdicts& verdicts);
  void Skip(const CallName& call, Verdicts& verdicts);
  void Run(const Bucket& ids, Verdicts& verdicts);
  void Emit(MultiHostDecision decision, Verdicts& verdicts);
  void EndJoin(Verdicts& verdicts);

  const std::vector<int> global_ranks_;
  const bool composes_;
  const bool grants_;
  const bool nccl_;
  bool grants_now_;
  uint64_t granted_ = 0;  ///< grants so far
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
  struct Recurring {
    std::shared_ptr<const Request> request;  ///< as it ran last
    uint64_t times = 0;                      ///< that it has come again since it changed
    uint64_t needed = 1;                     ///< such times, before it is granted
  };
  std::map<CallName, Recurring> recurring_;
  std::vector<uint64_t> last_;  ///< by the root's id: the decision that it was in last
  PlanChanges plan_changes_;
};

}  // namespace horoacc
