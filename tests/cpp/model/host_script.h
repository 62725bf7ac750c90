#pragma once
// What each rank of a process set on several hosts does, in a model of them.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/control_segment/segment_layout.h"

namespace horoacc::model {

struct HostStep {
  enum class Kind : uint8_t {
    kSubmit,   ///< an allreduce, once the rank's last call of that name is over
    kPlanned,  ///< the same of a locked plan
    kRecurs,   ///< the same, as a call that comes again by its name
    kChanged,  ///< and such a call with another request
    kRefuse,   ///< and the same with an error: the rank leaves the plan
    kWait,     ///< the rank goes on once all its calls are over
    kJoin,     ///< the rank joins, and submits again once the join is over
    kEnd,      ///< the rank asks for the end of the set
    kGiveUp,   ///< the rank rejects its call, if that is undecided; with `end`, it also asks for
               ///< that
    kAsk,      ///< the rank asks for which ranks its call waits, if that is undecided
  };
  Kind kind = Kind::kSubmit;
  std::string name{};  ///< empty: an unnamed call; of kAsk: the join
  SetEnd end{};
  int pauses = 0;  ///< the rank takes the step after so many pauses, which come once all else waits
};
using HostScript = std::vector<HostStep>;
[[nodiscard]] constexpr bool Submits(HostStep::Kind kind) {
  return kind <= HostStep::Kind::kRefuse;
}

inline HostStep Submit(std::string name) { return {HostStep::Kind::kSubmit, std::move(name)}; }
inline HostStep SubmitLate(std::string name, int pauses) {
  return {HostStep::Kind::kSubmit, std::move(name), {}, pauses};
}
inline HostStep Planned(std::string name) { return {HostStep::Kind::kPlanned, std::move(name)}; }
inline HostStep Recurring(std::string name) { return {HostStep::Kind::kRecurs, std::move(name)}; }
inline HostStep Changed(std::string name) { return {HostStep::Kind::kChanged, std::move(name)}; }
inline HostStep Refuse(std::string name) { return {HostStep::Kind::kRefuse, std::move(name)}; }
inline HostStep Wait() { return {HostStep::Kind::kWait}; }
inline HostStep Join() { return {HostStep::Kind::kJoin}; }
inline HostStep End(SetEnd end) { return {HostStep::Kind::kEnd, "", end}; }
inline HostStep GiveUp(std::string name, SetEnd end = {}) {
  return {HostStep::Kind::kGiveUp, std::move(name), end};
}
inline HostStep Ask(std::string name) { return {HostStep::Kind::kAsk, std::move(name)}; }

/// Mistakes of ranks and links that the model must notice.
enum class HostFault : uint8_t {
  kNone,
  kReordersLink,     ///< a link delivers its latest message first
  kJoinOvertakes,    ///< a join overtakes the news before it on a link
  kDoubles,          ///< a link delivers news twice
  kCountsBeforeRow,  ///< a rank announces a call before its row is written
  kJoinsBeforeRow,   ///< a rank joins before it has announced its last call
  kFinishesEarly,    ///< a rank says that it has finished decisions that it has not taken
  kClosesEarly,      ///< a rank of an ended set leaves decisions in the log
  kReleasesEarly,    ///< a rank releases the set when it asks for its end
  kSkipsLookUp,      ///< a rank uses an id under whatever version the id has now
  kForgetsLeader,    ///< the leader is not woken for what lies in the outbox
  kPassesGate,       ///< a rank stores results whose leader holds them
  kDrainsNothing,    ///< a host does not take what others have sent for a dropped round
};
inline constexpr int kHostFaults = 13;

struct HostShape {
  std::vector<int> hosts{};           ///< ranks of each
  std::vector<HostScript> scripts{};  ///< by rank
  std::vector<int> dies{};            ///< each of these ranks may die, at any time
  bool eager = true;                  ///< inputs travel with the news
  bool grants = false;                ///< hosts begin planned calls by themselves
  bool slow_rows = false;             ///< other ranks act between a rank's row and its announcement
  bool late_finish = false;           ///< other ranks act while a rank carries a decision out
  bool again = false;                 ///< a call that was given up is submitted again
  int pauses = 0;        ///< times that all ranks are slower than the leaders' patience
  uint32_t few_ids = 0;  ///< not 0: each host has only so many ids for names
  HostFault fault = HostFault::kNone;
};

/// "hosts 2 2, eager; 0: submit a, join; 1: ..."
[[nodiscard]] inline std::string Describe(const HostShape& shape) {
  std::string text = "hosts";
  for (const int ranks : shape.hosts) text += " " + std::to_string(ranks);
  for (const int rank : shape.dies) text += ", rank " + std::to_string(rank) + " may die";
  if (shape.eager) text += ", eager";
  if (shape.grants) text += ", grants";
  if (shape.slow_rows) text += ", slow rows";
  if (shape.late_finish) text += ", late finish";
  if (shape.again) text += ", again";
  if (shape.pauses > 0) text += ", pauses " + std::to_string(shape.pauses);
  if (shape.few_ids > 0) text += ", ids " + std::to_string(shape.few_ids);
  static constexpr const char* kVerbs[] = {"submit", "plan", "refuse",  "wait",
                                           "join",   "end",  "give up", "ask"};
  for (size_t rank = 0; rank < shape.scripts.size(); ++rank) {
    text += "\n" + std::to_string(rank) + ":";
    for (const HostStep& step : shape.scripts[rank])
      text += std::string(" ") + kVerbs[static_cast<size_t>(step.kind)] + " " + step.name + ",";
  }
  return text;
}

}  // namespace horoacc::model
