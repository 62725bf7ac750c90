#pragma once
// Small allreduces and barriers between two hosts: each sends its inputs to the other, and both
// reduce, without waiting for the root.
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "negotiate/call_numbers.h"
#include "negotiate/multi_host/ready_set.h"

namespace horoacc {

/// Only calls of which both hosts sent all inputs, and whose requests are equal, complete so. Both
/// hosts see the same two messages, so both find the same. Such a call is in no order with the
/// root's decisions: it needs nothing of another host. Each host's log has it once both messages
/// are there.
class DirectExchange {
 public:
  enum class Side : uint8_t { kOwn, kPeer };

  /// Whether a host may offer a call so: `members`, all ranks of the host, have submitted a
  /// barrier, or give their inputs to one request. A named call is offered once it has a number:
  /// the first time it goes through the root, which plans its bucket.
  [[nodiscard]] static bool Fits(const CallName& call, const ReadySet& ready_set, size_t members,
                                 const CallNumbers& numbers);

  /// One host offers the call. Gives the union of both offers once both are here and agree.
  [[nodiscard]] std::optional<ReadySet> Offer(Side side, const CallName& call,
                                              const ReadySet& ready_set);
  /// The root has decided the call.
  void Forget(const CallName& call) { offers_.erase(call); }

  // An offer stands once it is sent: the other host may have completed the call, and its own offer
  // may be on its way.
  /// Whether this host waits for the other one's offer of the call, or of any.
  [[nodiscard]] bool HasOffered(const CallName& call) const;
  [[nodiscard]] bool HasOffered() const;
  /// The root cannot end a call that it has offered: it asks the other host, which may run it. The
  /// number of the question; none: it has asked already.
  [[nodiscard]] std::optional<uint64_t> Withdraw(const CallName& call);
  /// The other host gives the root's offer back; false: it has answered it already.
  [[nodiscard]] bool GiveBack(const CallName& call);
  [[nodiscard]] bool IsGivenBack(const CallName& call, uint64_t question) const;

 private:
  struct Offered {
    Side side = Side::kOwn;
    ReadySet ready_set;
    uint64_t question = 0;  ///< 0: it was not withdrawn
  };
  std::map<CallName, Offered> offers_;  ///< of one host; the other's is to come
  uint64_t questions_ = 0;
};

}  // namespace horoacc
