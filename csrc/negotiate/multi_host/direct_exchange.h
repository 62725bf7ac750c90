#pragma once
// Small allreduces between two hosts: each sends its inputs to the other, and both reduce, without
// waiting for the root.
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

  /// Whether a host may offer a call so: `members`, all ranks of the host, give their inputs to one
  /// request, which has a number.
  [[nodiscard]] static bool Fits(const CallName& call, const ReadySet& ready_set, size_t members,
                                 const CallNumbers& numbers);

  /// One host offers the call. Gives the union of both offers once both are here and agree.
  [[nodiscard]] std::optional<ReadySet> Offer(Side side, const CallName& call,
                                              const ReadySet& ready_set);
  /// The root has decided the call.
  void Forget(const CallName& call) { offers_.erase(call); }

 private:
  std::map<CallName, std::pair<Side, ReadySet>> offers_;  ///< of one host; the other's is to come
};

}  // namespace horoacc
