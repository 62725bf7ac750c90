#pragma once
// Faults that a test orders: a rank fails at its n-th pass of a site. Without an order a site costs
// one well-predicted comparison.
#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace horoacc {

enum class FaultSite : uint8_t {
  kNone,
  kBootstrap,  ///< before the ranks of a host connect (first), and before the last exchange
  kSubmit,     ///< a call is submitted
  kDecide,     ///< under the set's lock, before a decision is made or sent to other hosts
  kBegin,      ///< before a decision is executed
  kAdvance,    ///< in the middle of its execution
  kFinish,     ///< executed on this rank, before any caller or rank knows
  kSend,       ///< a control message
  kReceive,
  kShutdown,  ///< the peers know of the shutdown, and the engine drains
};

enum class FaultAction : uint8_t { kExit, kAbort, kKill, kStop, kSleep, kError, kThrow };

/// site:rank:nth:action, as in "advance:1:3:kill"; the actions are exit, abort, kill, stop, error,
/// throw (std::bad_alloc) and sleep=SECONDS.
struct FaultOrder {
  FaultSite site = FaultSite::kNone;
  int rank = -1;
  uint64_t nth = 1;
  FaultAction action = FaultAction::kExit;
  double seconds = 0;

  /// "" orders nothing. kConfig for a bad text.
  static Result<FaultOrder> Parse(const std::string& text);
};

/// The sites of one rank.
class FaultPoints {
 public:
  FaultPoints(const FaultOrder& order, int rank)
      : order_(order), site_(order.rank == rank ? order.site : FaultSite::kNone) {}

  [[nodiscard]] bool Has(FaultSite site) const { return site_ == site; }
  /// Counts a pass of the site, and acts at the n-th. Returns an error for the action `error`.
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
