#pragma once
// Tensors that are reduced round after round, as a model's gradients are: once their rounds do not
// change any more, the ranks agree on a plan, and each bucket of it is one call.
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "base/tuned.h"
#include "runtime/job/calls.h"
#include "runtime/job/counters.h"
#include "transport/memory/arena.h"

namespace horoacc {

/// Each tensor is submitted at most once a round, waited for, and then the round is ended.
///
/// *Unlocked*, each tensor is a call of its own. After some unchanged rounds the round's first call
/// carries a proposal: a hash of the tensors, in their order. If all ranks' calls carry the same,
/// all ranks learn it from the outcome of that call, and are *locked* from the next round on: a
/// tensor is only noted, and the last one of a bucket submits the whole bucket.
///
/// In a round in which any rank is locked, each rank makes exactly one call for each bucket. A rank
/// that leaves the plan refuses the buckets that it has not submitted: it makes their calls with an
/// error. Such a call ends with an error on all ranks and touches no memory; each rank then submits
/// the bucket's tensors one by one, and is unlocked. So all ranks leave in the same round, and no
/// rank waits for a call that another does not make. A rank that has made all calls of a round
/// leaves in the next one, by refusals that nobody waits for. If it turns out that the others leave
/// in this round, or never lock, then the engine ends these (CollectiveEntry::IsMoot); a rank that
/// makes no round meets them in LookAtOthers.
///
/// Any thread; threads that wait for the same tensor at once excepted.
class LockedPlan {
 public:
  struct Surroundings {
    Calls& calls;
    Counters& counters;
    const Settings& settings;
    const Tuned& tuned;
    const Arena& arena;
    /// Called first at the plan's end: from then on nobody may look at it.
    std::function<void(LockedPlan*)> ended{};
  };

  /// `call` has no tensors.
  LockedPlan(Surroundings around, Submission call, const std::vector<std::string>& names);
  /// Leaves the plan; what is in flight goes on.
  ~LockedPlan();
  LockedPlan(const LockedPlan&) = delete;
  LockedPlan& operator=(const LockedPlan&) = delete;

  /// The memory must live until the tensor is waited for. A tensor whose call was refused, so that
  /// the other ranks hear of it, is in flight: Wait gives the error once more.
  Status Submit(size_t index, const TensorMeta& tensor, Submission::Buffers buffers);
  [[nodiscard]] bool InFlight(size_t index) const;
  /// kTimeout at the deadline, and then the tensor is still in flight; else its outcome. Nothing if
  /// it is not in flight.
  Status Wait(size_t index, int64_t deadline_ns);
  /// The tensors of the round have been waited for.
  void EndRound();
  /// This rank is about to join: it submits no buckets of the set for a while.
  void BeforeJoin(uint32_t process_set);
  /// A tuned setting may have changed: then the ranks agree on another plan, from the next round on
  /// if this one has not begun.
  void AfterTuning();
  /// The engine takes no calls any more: nor does this, and what was noted ends with an error.
  void Close();
  /// Between two rounds: leaves if another rank has left. From time to time; never blocks.
  void LookAtOthers();
  /// Never blocks: adds nothing while a thread is in here.
  void AddTo(PlansState& state) const;

 private:
  enum class State : uint8_t { kIdle, kCalled, kStored, kRefused };
  struct Member {
    std::string name;
    TensorMeta tensor;   ///< as it was submitted last
    bool apart = false;  ///< so were those: too large to be staged, and not in the arena
    State state = State::kIdle;
    uint32_t bucket = 0;  ///< kStored: in which
    uint64_t handle = 0;  ///< kCalled
    Submission::Buffers buffers;
    Error refusal = MakeError(ErrorKind::kOk, "");  ///< kRefused
  };
  struct Bucket {
    std::string name;
    std::vector<uint32_t> members;
    size_t missing = 0;      ///< members that are not stored in this round
    bool submitted = false;  ///< in this round, or refused
    uint64_t handle = 0;     ///< until its outcome is known
    Status outcome;
  };
  using Unlocks = std::atomic<uint64_t> Counters::*;

  // All under the mutex.
  [[nodiscard]] bool IsApart(const TensorMeta& tensor, const Submission::Buffers& buffers) const;
  [[nodiscard]] std::shared_ptr<CollectiveEntry> ProposalInFlight() const;
  void LockAhead();
  [[nodiscard]] std::shared_ptr<CollectiveEntry> CallOf(uint64_t handle) const;
  [[nodiscard]] Bucket* Unheard();
  void Call(Member& member, uint64_t proposal = 0);
  [[nodiscard]] static Status Taken(Member& member);
  Status SubmitBucket(Bucket& bucket);
  void Refuse(Bucket& bucket, const std::string& why);
  void EndBucket(Bucket& bucket, Status outcome);
  void Split(const Bucket& bucket);
  void Propose();
  void Lock(uint64_t number);
  [[nodiscard]] std::string Lacks(const Bucket& bucket) const;
  void Leave(Unlocks reason, std::string why);
  void LeaveIfTuned();

  const Surroundings around_;
  const Submission call_;
  mutable std::mutex mutex_;
  std::vector<Member> members_;
  std::vector<uint32_t> order_;       ///< members submitted in this round
  std::vector<uint32_t> last_order_;  ///< and in the one before
  bool changed_ = false;              ///< a member of this round is not as it was last
  uint64_t unchanged_ = 0;            ///< rounds
  uint64_t needed_;                   ///< unchanged rounds before a proposal
  uint64_t proposal_ = 0;             ///< 0: none
  std::vector<Bucket> proposed_;      ///< buckets, without names
  Way proposed_way_;
  uint64_t changes_ = 0;  ///< of tuned settings, before the latest proposal
  uint64_t agreed_ = 0;   ///< number of the plan on which the ranks have agreed in this round; or 0
  bool locked_ = false;
  uint64_t rounds_ = 0;          ///< locked ones, of this plan
  std::vector<Bucket> buckets_;  ///< of the latest plan
  Way way_;                      ///< of its buckets
  size_t open_ = 0;              ///< locked: buckets that are not submitted in this round
  bool refused_ = false;         ///< a bucket of this round was refused by some rank
  bool closed_ = false;
  std::string left_;  ///< why it was left, the last time
  /// Of the refusals that this rank makes now.
  std::vector<std::shared_ptr<CollectiveEntry>> doubts_;
};

}  // namespace horoacc
