#pragma once
// The log of decisions in a set's control segment: one thread at a time appends, under the set's
// lock, and each rank of the host reads at its own pace.
#include <optional>
#include <span>

#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"

namespace horoacc {

/// Bytes that belong to an entry of the log and do not fit in it: they lie in the memory of the
/// rank that appended it, the group's first, until all ranks of the host have finished the entry.
struct LogNote {
  uint64_t offset = 0;  ///< in that rank's memory
  uint64_t bytes = 0;   ///< 0: the entry has none
};

class DecisionLog {
 public:
  explicit DecisionLog(SetSegment& control)
      : control_(control), taken_(control.header().log_words.load(std::memory_order_acquire)) {}

  struct Entry {
    Decision decision;
    LogNote note;
  };
  /// The next entry that this rank has not taken.
  [[nodiscard]] std::optional<Entry> Next();
  /// End of what this rank has taken.
  [[nodiscard]] uint64_t taken() const { return taken_; }

  /// Under the set's lock. Returns the entry's end.
  uint64_t Append(const Decision& decision, const LogNote& note = {});
  /// Is there room, and are there execution slots, for all that one ready call can bring about?
  [[nodiscard]] bool HasRoom() const;

 private:
  SetSegment& control_;
  uint64_t taken_;  ///< words
};

}  // namespace horoacc
