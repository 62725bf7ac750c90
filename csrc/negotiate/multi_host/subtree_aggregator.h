#pragma once
// What a rank between the root and others knows of calls on their way up: it holds them until all
// of its subtree have submitted. It has no links, clock or locks, so that a test moves it by hand.
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "negotiate/call_numbers.h"
#include "negotiate/multi_host/ready_set.h"

namespace horoacc {

/// Long beside a step's delays, short beside the time after which anybody asks.
inline constexpr int64_t kSubtreeTimeout = 50 * kMillisecond;

class SubtreeAggregator {
 public:
  /// News of a call to be sent up now.
  struct News {
    CallName call;
    ReadySet ready_set;
    bool whole = false;  ///< all of the subtree, of one mind, and nothing was sent before
  };

  /// `members`: of the subtree. `timeout_ns`: how long news may wait for the rest; then it goes up
  /// as it is, and what comes later goes at once: the root knows whom a call waits for.
  SubtreeAggregator(std::vector<uint32_t> members, int64_t timeout_ns)
      : members_(std::move(members)), timeout_ns_(timeout_ns) {}

  struct Arrived {
    bool fits = true;  ///< false: a member tells of a call that it has told of already
    std::optional<News> news;
  };
  [[nodiscard]] Arrived Arrive(const CallName& call, const ReadySet& from, int64_t now_ns);
  /// The member submits nothing more until EndJoin. Returns what waited for nobody else.
  [[nodiscard]] std::vector<News> Join(uint32_t member);
  void EndJoin() { joined_.clear(); }
  /// What is here of a call, without waiting for the rest.
  [[nodiscard]] std::optional<News> Flush(const CallName& call);
  /// The same for all that have waited for too long.
  [[nodiscard]] std::vector<News> FlushOld(int64_t now_ns);
  /// The call was ended by force: whoever submits it again begins anew.
  void Forget(const CallName& call) { pending_.erase(call); }
  /// Does anything wait for its time?
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
