#pragma once
// Calls that wait too long: which ranks keep them waiting.
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/health/stack_exchange.h"
#include "runtime/job/failure.h"
#include "runtime/sets/set_table.h"

namespace horoacc {

/// Any thread. Logs and aborts after it has given the set's lock back: an abort rings every rank
/// and sends messages to other hosts, and calls of the set would wait for it.
class StallWatch {
 public:
  StallWatch(Job& job, Failure& failure, SetTable& sets, StackExchange& stacks)
      : job_(job), failure_(failure), sets_(sets), stacks_(stacks) {}

  /// Warns of calls that wait, and ends the job at the limit.
  void Look();
  /// Two ranks that wait for a tensor of one name in different process sets, each for the other,
  /// would wait for ever: they disagree about the set. Both sets get the error. `entry`: for which
  /// a caller of this rank has waited for a while.
  void LookForOtherSet(const CollectiveEntry& entry);

 private:
  struct Limits {
    int64_t warn_ns = 0;
    int64_t end_ns = 0;  ///< 0: never
  };
  /// What one look at a set found, to be told without its lock.
  struct Findings {
    std::vector<std::string> warnings;
    std::optional<Error> end;
  };
  // Under the queue's lock.
  void LookAtCall(ProcessSet& set, CollectiveEntry& entry, Limits limits, Findings& found);
  void LookAtRun(ProcessSet& set, CollectiveEntry& entry, Limits limits, Findings& found);
  void LookAtJoin(ProcessSet& set, Limits limits, Findings& found);
  void Report(const ProcessSet& set, CollectiveEntry& entry, int64_t waited_ns, Findings& found);

  [[nodiscard]] std::string BehindSilent(const std::vector<int>& missing) const;
  /// Ranks of several hosts share no control segment in which the first of those that wait could
  /// say that it has told, so the lowest of them tells.
  [[nodiscard]] bool TellsForAll(const ProcessSet& set, const std::vector<int>& waiting) const;

  Job& job_;
  Failure& failure_;
  SetTable& sets_;
  StackExchange& stacks_;
};

}  // namespace horoacc
