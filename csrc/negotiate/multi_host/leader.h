#pragma once
// The leader of a set on one of its hosts: it passes news of the host's calls up the tree of
// leaders and decisions down it, and the topmost leader decides.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/fault.h"
#include "negotiate/call_numbers.h"
#include "negotiate/multi_host/attendance_questions.h"
#include "negotiate/multi_host/control_mux.h"
#include "negotiate/multi_host/direct_exchange.h"
#include "negotiate/multi_host/host_grants.h"
#include "negotiate/multi_host/host_log.h"
#include "negotiate/multi_host/multi_host_root.h"
#include "negotiate/multi_host/multi_host_tree.h"
#include "negotiate/multi_host/subtree_aggregator.h"
#include "negotiate/multi_host/tree_links.h"

namespace horoacc {

/// A leader tells its parent in the tree of a call once all ranks of its subtree have submitted it;
/// the set's lowest rank, the root, decides, and decisions come down the same way. So for a call a
/// leader receives one message of each child, and one of its parent.
class Leader {
 public:
  struct Place {
    uint32_t set = 0;
    std::vector<int> ranks;  ///< global, of the set
    MultiHostTree tree;
    uint64_t fusion_threshold = 0;
    bool composes = false;          ///< see MultiHostRoot
    bool grants = false;            ///< see MultiHostRoot
    bool nccl = false;              ///< see MultiHostRoot
    FaultPoints* faults = nullptr;  ///< null: none
  };
  Leader(ControlMux& mux, Place place, HostGroup& group, SetSegment& control,
         const SetContext& context, EagerRule eager, NoteMemory memory);
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  /// Takes what the ranks of the host have left, and passes on what has waited for too long. Any
  /// thread.
  Status Pump();
  /// Does it hold news that Pump has to send on after a while?
  [[nodiscard]] bool HoldsNews();

 private:
  // All under mutex_.
  Status OnMessage(int source, std::span<const std::byte> payload);
  Status Settle();
  Status TakeOutbox();
  Status TakePutOff();
  Status TakeItem(const OutboxItem& item);
  // The way up.
  Status FromBelow(const MultiHostTree::Child& child, std::span<const std::byte> payload);
  Status OnNews(TensorKey key);
  Status OnJoined(uint32_t member, uint64_t unnamed);
  Status OnSplit(uint32_t bucket, const CallName& witness, uint64_t seen);
  Status OnOwnReject(const CallName& call, const Error& error);
  [[nodiscard]] bool MayRun(const CallName& call) const;
  Status OnReject(const CallName& call, const Error& error);
  Status OnEnd(SetEnd end);
  Status OnReleased();
  Status Arrive(const CallName& call, const ReadySet& ready_set, uint64_t seen,
                const RootPlace& place);
  Status SendNews(const SubtreeAggregator::News& news);
  Status OnDirectNews(const HostLog::News& news);
  Status OnPeersNews(const ReadyNews& news);
  Status RunDirect(const CallName& call, const ReadySet& both);
  // The way down.
  Status FromAbove(std::span<const std::byte> payload);
  Status Tell(MultiHostRoot::Verdicts verdicts);
  Status TellPlan();
  Status Take(MultiHostDecision verdict);
  Status TakeEnd(SetEnd end);
  Status TakeReleased();

  /// All later news of calls is of leaders that had taken as many decisions.
  [[nodiscard]] uint64_t LeastSeen() const {
    const auto least = std::ranges::min_element(child_seen_);
    return least == child_seen_.end() ? log_.published() : std::min(log_.published(), *least);
  }

  ControlMux& mux_;
  const Place place_;
  HostGroup& group_;
  SetSegment& control_;

  std::mutex mutex_;
  HostLog log_;
  TreeLinks links_;
  CallNumbers numbers_;               ///< of the calls in the first `decided_` decisions
  uint64_t decided_ = 0;              ///< that this leader has taken
  std::vector<uint64_t> child_seen_;  ///< by child: decisions that it had taken at its last news
  bool end_told_ = false;
  bool ended_ = false;
  std::optional<SetEnd>
      ending_;             ///< of the root: told to the other host, which has offers of this one
  uint32_t released_ = 0;  ///< this host, and children with all below them

  std::optional<DirectExchange> exchange_;       ///< of a set on two hosts
  std::vector<uint32_t> peers_;                  ///< then: the members on the other
  std::optional<SubtreeAggregator> aggregator_;  ///< none: the root
  int64_t next_flush_ns_ = 0;
  std::map<CallName, uint64_t> rejected_;  ///< decisions there were then; not the root's
  std::map<uint32_t, uint64_t> splits_;    ///< by bucket: decisions seen by whom it was sent up for
  std::optional<MultiHostRoot> root_;
  HostGrants grants_;
  AttendanceQuestions questions_;
};

}  // namespace horoacc
