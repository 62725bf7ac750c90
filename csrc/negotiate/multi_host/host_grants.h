#pragma once
// One host's leader and the grants of its set (grants.h): it begins rounds of granted calls, and
// the leaders revoke the grants together. The root orders that, each host closes and says what it
// has begun, and the root tells all hosts what they have begun together.
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "negotiate/control_segment/outbox.h"
#include "negotiate/multi_host/grants.h"
#include "negotiate/multi_host/host_log.h"
#include "negotiate/multi_host/multi_host_root.h"
#include "negotiate/multi_host/tree_links.h"

namespace horoacc {

class HostGrants {
 public:
  /// `root`: none: another host has it. All outlive it.
  HostGrants(TreeLinks& links, HostLog& log, std::optional<MultiHostRoot>& root)
      : links_(links), log_(log), root_(root) {}

  void Add(Grants::Grant grant) { grants_.Add(std::move(grant)); }
  /// Begins a round of the call, if it is granted. False: the root has to know of the news.
  Result<bool> BeginRound(const HostLog::News& news);
  /// All of the set are revoked.
  Status AskToRevoke();
  /// Rounds that wait for other hosts may keep all slots of a log that is full.
  Status AskForSlots() {
    return log_.waits() && log_.rounds().AnyBegun() ? AskToRevoke() : Status();
  }
  /// Whether an item has to wait until the grants are revoked, or needs nothing more.
  Result<bool> PutsOff(const OutboxItem& item);
  /// The root's: whether the set's end has to.
  Result<bool> PutsOff(SetEnd end);
  /// Messages of kinds kRevoke, kBegun and kSettle.
  Status FromBelow(MultiHostMessage kind, WireReader& reader, int source);
  Status FromAbove(MultiHostMessage kind, WireReader& reader, int source);

  /// Are there calls to be told of again, or items that were put off?
  [[nodiscard]] bool HoldsItems() const { return log_.rounds().HasDropped() || !put_off_.empty(); }
  [[nodiscard]] std::deque<OutboxItem> TakeItems() { return std::exchange(put_off_, {}); }
  /// Have revoked grants been settled since the last time? Then TakeItems has more, and Resume
  /// follows: calls are granted again, and it gives the end that was put off.
  [[nodiscard]] bool TakeSettled() { return std::exchange(settled_, false); }
  [[nodiscard]] std::optional<SetEnd> Resume();

 private:
  Status Revoke();
  Status TellBegun();
  Status Settle(const BegunRounds& begun);

  TreeLinks& links_;
  HostLog& log_;
  std::optional<MultiHostRoot>& root_;
  Grants grants_;
  bool asked_ = false;        ///< the parent, to revoke them
  BegunRounds begun_;         ///< of this host and of children that have told
  size_t begun_missing_ = 0;  ///< children that have not
  bool settled_ = false;
  std::optional<SetEnd> end_;               ///< of the root: put off
  std::deque<OutboxItem> put_off_;          ///< until the root knows of their calls
  std::map<uint32_t, OutboxItem> waiting_;  ///< granted calls that wait for ranks here, by id
};

}  // namespace horoacc
