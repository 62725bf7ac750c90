#pragma once
// What each rank of a process set on several hosts does, in a model of them.
#include <cstdint>
#include <string>
#include <vector>

#include "negotiate/control_segment/segment_layout.h"

namespace horoacc::model {

struct HostStep {
  enum class Kind : uint8_t {
    kSubmit,  ///< once the rank's last call of that name is over; an allreduce
    kWait,    ///< until all calls of the rank are over
    kJoin,    ///< and waits for the end of the join
    kEnd,     ///< asks for the end of the set
    kGiveUp,  ///< rejects the call, if it is still undecided
    kAsk,     ///< whom the call waits for, if it is still undecided
  };
  Kind kind = Kind::kSubmit;
  std::string name{};  ///< empty: an unnamed call; of kAsk: the join
  SetEnd end{};
};
using HostScript = std::vector<HostStep>;

inline HostStep Submit(std::string name) { return {HostStep::Kind::kSubmit, std::move(name)}; }
inline HostStep Wait() { return {HostStep::Kind::kWait}; }
inline HostStep Join() { return {HostStep::Kind::kJoin}; }
inline HostStep End(SetEnd end) { return {HostStep::Kind::kEnd, "", end}; }
inline HostStep GiveUp(std::string name) { return {HostStep::Kind::kGiveUp, std::move(name)}; }
inline HostStep Ask(std::string name) { return {HostStep::Kind::kAsk, std::move(name)}; }

/// What production code never does, and the models must notice.
enum class HostFault : uint8_t {
  kNone,
  kReordersLink,      ///< a link delivers its latest message first
  kJoinOvertakes,     ///< a join overtakes the news before it on a link
  kDoubles,           ///< a link delivers news twice
  kCountsBeforeRow,   ///< a rank announces a call and writes its row afterwards
  kJoinsBeforeRow,    ///< a rank that joins has not announced its last call yet
  kFinishesEarly,     ///< a rank says that it is through the log before it has taken what is there
  kClosesEarly,       ///< a rank of an ended set leaves decisions in the log
  kReleasesEarly,     ///< a rank releases the set when it asks for its end
  kSkipsLookUp,       ///< a rank keeps the id that it was given for a name
  kForgetsLeader,     ///< nobody wakes the leader for what lies in the outbox
};

struct HostShape {
  std::vector<int> hosts;           ///< ranks of each
  std::vector<HostScript> scripts;  ///< by rank
  std::vector<int> dies{};          ///< each of these ranks may die, at any time
  bool eager = true;                ///< inputs travel with the news
  bool slow_rows = false;           ///< others act between a rank's row and its announcement
  bool late_finish = false;         ///< others act between taking a decision and finishing it
  bool again = false;               ///< what was given up is submitted again
  int pauses = 0;                   ///< times that all are slower than the leaders' patience
  uint32_t few_ids = 0;             ///< not 0: each host has only so many ids for names
  HostFault fault = HostFault::kNone;
};

}  // namespace horoacc::model
