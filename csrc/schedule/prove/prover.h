#pragma once
// Runs a schedule on symbols and finds out whether it is right. Knows schedules by step() alone.
//
// Lanes run their steps in order, links are FIFOs of bounded depth with blocking ends, and every
// link has one lane at each end (which is checked): a Kahn network. Whether such a network ends,
// and with which values, does not depend on timing, so one run decides for all. What does depend
// on timing, whether memory is reused too early, is decided by vector clocks, without counting on
// the order that a link of this depth happens to enforce.
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"

namespace horoacc::schedule {

struct LinkUse {
  uint32_t from = 0, to = 0;
  uint8_t channel = 0;
  uint64_t messages = 0;
  uint64_t chunks = 0;
};

/// How an executor runs the schedule.
struct Rules {
  uint32_t depth = 1;  ///< messages that a link holds
  /// A step that receives and sends does both at once, from slot to slot. Otherwise the step gives
  /// its receive slots back before it waits for send slots.
  bool fused = false;
  bool in_place = false;  ///< output is the input's memory
  uint32_t windows = 1;
  uint32_t places = 1;  ///< windows in flight on a rank: scratch of window w is that of w + places
  /// A window's scratch is reused only when all messages sent from it have been taken.
  bool drains = true;
  /// A link whose credits are lost: no actor waits until its messages are taken.
  std::optional<LinkUse> careless = {};
};

struct Proof {
  std::vector<LinkUse> links;
  uint32_t rounds = 0;  ///< the longest chain of messages that wait for each other
  uint64_t steps = 0;
};

inline constexpr uint32_t kMostProvableRanks = 64;
inline constexpr uint32_t kMostProvableLanes = 32;  ///< as many as `Step::after` can name

/// kInvalid names the rank, lane and step at which the schedule goes wrong.
[[nodiscard]] Result<Proof> Prove(const Schedule& schedule, const Rules& rules);

}  // namespace horoacc::schedule
