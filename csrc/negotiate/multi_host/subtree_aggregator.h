#pragma once
// The calls on their way up through a rank that is not the root: it holds each until its whole
// subtree has submitted it. It has no links, clock or locks, so that a test moves it by hand.
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "negotiate/call_numbers.h"
#include "negotiate/multi_host/ready_set.h"

namespace horoacc {

/// Long beside a step's delays, short beside the time after which a rank asks for whom a call
/// waits.
inline constexpr int64_t kSubtreeTimeout = 50 * kMillisecond;

class SubtreeAggregator {
 public:
  /// News of a call to be sent up now.
  struct News {
    CallName call;
    ReadySet ready_set;
    bool whole = false;  ///< the whole subtree, with equal requests, and nothing was sent before
  };

  /// `members`: of the subtree. `timeout_ns`: how long a call may wait here for the rest; then it
  /// goes up as it is, and later members at once, so that the root knows for whom the call waits.
  SubtreeAggregator(std::vector<uint32_t> members, int64_t timeout_ns)
      : members_(std::move(members)), timeout_ns_(timeout_ns) {}

  struct Arrived {
    bool fits = true;  ///< false: a member announces a call a second time
    std::optional<News> news;
  };
  [[nodiscard]] Arrived Arrive(const CallName& call, const ReadySet& from, int64_t now_ns);
  /// The member submits nothing more until EndJoin. Returns the calls that waited for no other
  /// member.
  [[nodiscard]] std::vector<News> Join(uint32_t member);
  void EndJoin() { joined_.clear(); }
  /// The members that are here of a call, without waiting for the rest.
  [[nodiscard]] std::optional<News> Flush(const CallName& call);
  /// The same for all that have waited for too long.
  [[nodiscard]] std::vector<News> FlushOld(int64_t now_ns);
  /// The call was ended by force: its next announcement begins anew.
  void Forget(const CallName& call) { pending_.erase(call); }
  /// Does a call wait here for the rest of the subtree?
  [[nodiscard]] bool Holds() const;

 private:
  struct Pending {
    ReadySet ready_set;  ///< that was not sent
    ReadySet sent;
    int64_t since_ns = 0;
    bool open = false;  ///< waits no more
  };
  [[nodiscard]] bool Complete(const Pending& pending) const;
  [[nodiscard]] std::optional<News> Take(const CallName& call, Pending& pending) const;

  const std::vector<uint32_t> members_;
  const int64_t timeout_ns_;
  std::map<CallName, Pending> pending_;
  std::vector<uint32_t> joined_;
};

}  // namespace horoacc
