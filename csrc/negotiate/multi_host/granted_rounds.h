#pragma once
// The rounds of granted calls (grants.h) in one host's log.
#include <map>
#include <optional>
#include <vector>

#include "negotiate/call_numbers.h"
#include "negotiate/control_segment/host_group.h"

namespace horoacc {

/// The latest round of each granted call, and the rounds that are dropped.
class GrantedRounds {
 public:
  GrantedRounds(HostGroup& group, SetSegment& control) : group_(group), control_(control) {}

  /// A round has begun, and goes into the log.
  void Begin(const CallName& call, TensorKey key) { latest_[call] = {.key = key}; }
  /// It is the log's last entry, with this slot.
  void Publish(const CallName& call, uint64_t slot);
  /// Results of the latest round stay away from the ranks' memory, unless some are there. Gives the
  /// call if its round is not in the log yet: then it is dropped.
  [[nodiscard]] std::optional<TensorKey> Hold(const CallName& call);
  /// What becomes of the round that was held. A dropped one is undecided again.
  Status Settle(const CallName& call, bool drop);
  /// Whether a round of the call has begun, and the root knows nothing of it: it may be dropped, or
  /// has been and is still read.
  [[nodiscard]] bool IsBegun(TensorKey key) const;
  [[nodiscard]] bool AnyBegun() const;
  [[nodiscard]] bool HasDropped() const { return !dropped_.empty(); }
  /// Whether ranks of this host still carry out a dropped round of one of these calls.
  [[nodiscard]] bool IsCarriedOut(const std::vector<CallName>& calls) const;
  /// The root ends the call: if a round of it is dropped, nobody is told of that.
  [[nodiscard]] std::optional<TensorKey> EndDropped(const CallName& call);
  /// Calls of dropped rounds that no rank of this host carries out any more.
  [[nodiscard]] std::vector<TensorKey> TakeDropped();

 private:
  struct Latest {
    TensorKey key;
    uint64_t slot = 0;
    uint64_t end = 0;  ///< in the log; 0: it is not there yet
    [[nodiscard]] bool IsOver(uint64_t finished) const { return end != 0 && end <= finished; }
  };
  struct Dropped {
    CallName call;
    TensorKey key;
    uint64_t end = 0;  ///< in the log
  };

  HostGroup& group_;
  SetSegment& control_;
  std::map<CallName, Latest> latest_;
  std::vector<Dropped> dropped_;
};

}  // namespace horoacc
