#pragma once
// Calls that hosts begin without asking the root. The root grants a call that comes in each round
// of a locked plan: from then on a host begins a round of it once all its ranks have submitted it
// as it was granted, and the data of the other hosts tell that theirs have, too.
//
// Grants are revoked, all of a set at once, when a host has to tell the root of a granted call (a
// rank refuses it, asks for it or gives it up), and before the set's end. Every host then begins
// no more, keeps results from its ranks' memory, and says how many rounds it has begun. Between two
// rounds of a host lies one of each other host, so these numbers differ by one at most: a round
// that some hosts have begun and others have not has no results anywhere. It is dropped: hosts that
// have not begun it send zeros in its stead, so that its data are taken, and then those that have
// tell the root of the call in the ordinary way. A round that all have begun goes on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "negotiate/call_numbers.h"
#include "negotiate/multi_host/ready_set.h"
#include "schedule/select.h"

namespace horoacc {

/// Of longer calls a message less is not worth the copies that runs of granted calls make. Over
/// loopback these take as long as the message or longer at any size (docs/performance.md).
inline constexpr uint64_t kMostGrantedBytes = 2 << 20;

/// Runs between hosts of granted calls have numbers of their own.
inline constexpr uint64_t kGrantedRun = uint64_t{1} << 63;
inline constexpr int kRoundBits = 36;
inline constexpr uint64_t kMostGrants = uint64_t{1} << 27;
[[nodiscard]] constexpr uint64_t RunOf(uint64_t grant, uint64_t round) {
  return kGrantedRun | grant << kRoundBits | round;
}

/// Rounds of each grant, in the order of the grants: the least and the most that one of some hosts
/// has begun.
struct BegunRounds {
  std::vector<uint64_t> least, most;

  /// Whether hosts that keep the rules can have begun so many.
  [[nodiscard]] bool Fits(size_t grants) const {
    if (least.size() != grants || most.size() != grants) return false;
    for (size_t k = 0; k < grants; ++k) {
      if (most[k] < least[k] || most[k] - least[k] > 1) return false;
    }
    return true;
  }
  /// Both have as many grants.
  void Add(const BegunRounds& others) {
    for (size_t k = 0; k < least.size(); ++k) {
      least[k] = std::min(least[k], others.least[k]);
      most[k] = std::max(most[k], others.most[k]);
    }
  }
};

/// What becomes of the latest round of a grant on one host.
enum class RoundFate : uint8_t {
  kKept,     ///< all hosts have begun it, if any
  kDropped,  ///< this host has begun it, others have not
  kDrained,  ///< others have begun one that this host has not
};
[[nodiscard]] constexpr RoundFate FateOf(uint64_t begun, uint64_t least, uint64_t most) {
  if (least == most) return RoundFate::kKept;
  return begun == most ? RoundFate::kDropped : RoundFate::kDrained;
}

/// The grants of a set, as one host's leader knows them: each leader has the same ones.
class Grants {
 public:
  struct Grant {
    uint64_t number = 0;
    CallName call;
    std::shared_ptr<const Request> request;
    Path path = Path::kNone;
    uint64_t begun = 0;  ///< rounds that this host has begun
    [[nodiscard]] uint64_t latest_run() const { return RunOf(number, begun); }
  };

  void Add(Grant grant) { grants_.push_back(std::move(grant)); }
  [[nodiscard]] bool empty() const { return grants_.empty(); }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] const std::vector<Grant>& all() const { return grants_; }
  [[nodiscard]] bool Has(const CallName& call) const { return Find(call) != nullptr; }
  /// This host's `members` have submitted it like this. Gives the grant, with its next round
  /// begun; null: the root has to know of the call.
  [[nodiscard]] const Grant* Begin(const CallName& call, const ReadySet& ready_set,
                                   size_t members) {
    Grant* const grant = Find(call);
    if (closed_ || grant == nullptr || ready_set.count() != members ||
        ready_set.groups().size() != 1 || grant->begun + 1 >= uint64_t{1} << kRoundBits ||
        (grant->path == Path::kComposed && !ready_set.shared()))
      return nullptr;
    const Request& request = *ready_set.groups()[0].request;
    if (&request != grant->request.get() && request != *grant->request) return nullptr;
    ++grant->begun;
    return grant;
  }
  /// No round begins any more, until the grants are forgotten.
  void Close() { closed_ = true; }
  /// The latest round was not begun after all.
  void TakeBack(size_t index) { --grants_[index].begun; }
  [[nodiscard]] BegunRounds Begun() const {
    BegunRounds begun;
    for (const Grant& grant : grants_) begun.least.push_back(grant.begun);
    begun.most = begun.least;
    return begun;
  }
  [[nodiscard]] std::vector<Grant> Forget() {
    closed_ = false;
    return std::exchange(grants_, {});
  }

 private:
  [[nodiscard]] const Grant* Find(const CallName& call) const {
    const auto found = std::ranges::find(grants_, call, &Grant::call);
    return found == grants_.end() ? nullptr : &*found;
  }
  [[nodiscard]] Grant* Find(const CallName& call) {
    return const_cast<Grant*>(std::as_const(*this).Find(call));
  }

  std::vector<Grant> grants_;  ///< by number, ascending
  bool closed_ = false;
};

}  // namespace horoacc
