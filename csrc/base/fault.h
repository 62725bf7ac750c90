#pragma once
// Faults that a test asks for: at the n-th time that a rank comes to a site, something happens to
// it. Nothing is asked for in a job; a site then costs one comparison that always goes one way.
#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace horoacc {

enum class FaultSite : uint8_t {
  kNone,
  kBootstrap,  ///< before the ranks of a host meet (first), and before the last of all meetings
  kSubmit,     ///< a call comes in
  kDecide,     ///< under the set's lock: what is ready is about to be decided, or told to hosts
  kBegin,      ///< a decision is about to be carried out
  kAdvance,    ///< in the middle of one
  kFinish,     ///< it is complete here, and nobody has been told
  kSend,       ///< a control message
  kReceive,
  kShutdown,  ///< the others have been told, and the engine drains
};

enum class FaultAction : uint8_t { kExit, kAbort, kKill, kStop, kSleep, kError };

/// site:rank:nth:action, as in "advance:1:3:kill"; the actions are exit, abort, kill, stop, error
/// and sleep=SECONDS.
struct FaultOrder {
  FaultSite site = FaultSite::kNone;
  int rank = -1;
  uint64_t nth = 1;
  FaultAction action = FaultAction::kExit;
  double seconds = 0;

  /// "" orders nothing. kConfig says what is wrong with a text.
  static Result<FaultOrder> Parse(const std::string& text);
};

/// The sites of one rank.
class FaultPoints {
 public:
  FaultPoints(const FaultOrder& order, int rank)
      : order_(order), site_(order.rank == rank ? order.site : FaultSite::kNone) {}

  [[nodiscard]] bool Has(FaultSite site) const { return site_ == site; }
  /// The rank has come to its site: counts, and at the n-th time does what was ordered. An error
  /// for the action `error`.
  Status Strike();

 private:
  const FaultOrder order_;
  const FaultSite site_;
  std::atomic<uint64_t> came_{0};
};

}  // namespace horoacc

/// Returns the ordered error to the caller.
#define HA_FAULT(points, site)                                 \
  do {                                                         \
    if ((points).Has(::horoacc::FaultSite::site)) [[unlikely]] \
      HA_TRY((points).Strike());                               \
  } while (false)
