#pragma once
// The controller of ranks that share no memory: calls by name, up a tree of hosts and back.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/fault.h"
#include "base/settings.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"
#include "negotiate/multi_host/control_mux.h"
#include "negotiate/multi_host/multi_host_root.h"
#include "negotiate/multi_host/multi_host_tree.h"
#include "negotiate/multi_host/subtree_aggregator.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// A rank tells its parent in the tree (MultiHostTree) of a call once all ranks of its subtree have
/// submitted it; the set's lowest rank, the root, decides, and decisions come down the same way. So
/// for a call a rank receives one message of each child, and one of its parent.
///
/// The control segment is this rank's alone: its ids and generations mean nothing to the others, so
/// each rank puts its own into a decision that it takes. Nearly thirty members, since a rank is a
/// leaf, a branch or the root of the tree, and each of them ends its calls and leaves the set in
/// the same messages.
class MultiHostController final : public Controller {
 public:
  struct Place {
    uint32_t set = 0;
    std::vector<int> ranks;    ///< global, of the set
    std::vector<int> host_of;  ///< by rank of the job
    int rank = 0;              ///< global, this one; it may be no member
    int local_rank = 0;        ///< whose doorbell rings
    /// Has this rank of the job shut down in good order?
    std::function<bool(int)> has_left;
    FaultPoints* faults = nullptr;  ///< null: none
  };
  MultiHostController(ControlMux& mux, Place place, SetSegment& control, const Doorbells& doorbells,
                      const Settings& settings);
  ~MultiHostController() override;

  Result<Announced> Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Join(uint64_t unnamed) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] SetEnd Ended() override;
  Status Release() override;
  [[nodiscard]] bool Released() override;
  [[nodiscard]] bool HoldsNews() override;

  /// Tells all ranks that this one has left the group, for calls that need no decision (messages).
  Status SayLeft();
  /// Has this rank of the job told that?
  [[nodiscard]] bool HasLeft(int rank);

  /// The ranks that have submitted an undecided call of this rank or, without a key, those that
  /// have joined. The root knows; other ranks ask it, and have the answer at a later look.
  [[nodiscard]] Result<std::optional<Attendance>> WhoHas(std::optional<TensorKey> tensor);

 private:
  /// A call of this rank's that is not decided.
  struct Own {
    TensorKey key;
    std::shared_ptr<const Request> request;
    uint64_t eager = 0;                    ///< bytes of the input that went with the announcement
    std::optional<Attendance> attendance;  ///< as the root last said
  };

  // All under mutex_.
  Status OnMessage(int source, std::span<const std::byte> payload);
  // The way up.
  Status FromBelow(const MultiHostTree::Child& child, std::span<const std::byte> payload);
  Status OnJoined(uint32_t member, uint64_t unnamed);
  Status OnSplit(uint32_t bucket, const CallName& witness, uint64_t seen);
  Status OnReject(const CallName& call, const Error& error);
  Status OnEnd(SetEnd end);
  Status Arrive(const CallName& call, const ReadySet& ready_set, uint64_t seen,
                const RootPlace& place);
  Status SendNews(const SubtreeAggregator::News& news);
  Status SendUp(const WireWriter& writer);
  // The way down.
  Status FromAbove(std::span<const std::byte> payload);
  Status Tell(MultiHostRoot::Verdicts verdicts);
  Status TellPlan();
  Status Take(MultiHostDecision multi_host);
  Status EndAll(SetEnd end);
  Status SendDown(std::span<const std::byte> payload);
  // Between any rank and the root or all.
  Status OnWhoHas(int source, WireReader& reader);
  Status OnAttendance(WireReader& reader);
  Status SendToAll(const WireWriter& writer);

  ControlMux& mux_;
  const Place place_;
  const std::optional<uint32_t> member_;  ///< this rank's index; none: it is not in the set
  const MultiHostTree tree_;
  const bool
      sends_eager_;  ///< small inputs travel with announcements; not if an algorithm is forced
  /// Inputs of 16-bit floats, too; not where schedules round sums on the way and the root does not.
  const bool eager_halves_;
  SetSegment& control_;
  const Doorbells& doorbells_;

  std::mutex mutex_;
  std::map<CallName, Own> own_;
  std::unordered_map<uint32_t, CallName> call_of_;  ///< by id: of own_
  std::optional<Attendance> joins_;                 ///< as the root last said
  std::deque<Decision> decisions_;
  uint64_t decided_ = 0;
  CallNumbers numbers_;  ///< of the calls in the first `decided_` decisions
  uint64_t eager_ = 0;   ///< bytes of inputs of own_ that travelled with announcements
  bool end_told_ = false;
  SetEnd end_;
  bool release_told_ = false;
  std::vector<bool> released_, left_;  ///< by member, as they have said

  std::optional<SubtreeAggregator> aggregator_;  ///< none: the root
  int64_t next_flush_ns_ = 0;
  std::map<CallName, uint64_t> rejected_;  ///< decisions there were then; not the root's
  std::map<uint32_t, uint64_t> splits_;    ///< by bucket: decisions seen by whom it was sent up for
  ToldBuckets<CallName> buckets_;
  std::optional<MultiHostRoot> root_;
};

}  // namespace horoacc
