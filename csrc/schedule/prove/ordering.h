#pragma once
// Which events are ordered whatever the timing: vector clocks, and the accesses to a place in
// memory (Flanagan and Freund, "FastTrack", 2009).
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "schedule/prove/value.h"

namespace horoacc::schedule {

/// Signed and of 16 bits, because a proof spends most of its time in Join.
using Time = int16_t;
inline constexpr Time kLastTime = std::numeric_limits<Time>::max();
using Clock = std::span<Time>;  ///< by actor: the number of its events that are surely over

inline void Join(Clock clock, std::span<const Time> other) {
  for (size_t k = 0; k < clock.size(); ++k) clock[k] = std::max(clock[k], other[k]);
}

/// Clocks of one size, side by side.
class Clocks {
 public:
  Clocks(size_t count, size_t actors) : size_((actors + 15) / 16 * 16), times_(count * size_) {}
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] Clock operator[](size_t k) { return {times_.data() + k * size_, size_}; }

 private:
  const size_t size_;  ///< a multiple of a processor's register
  std::vector<Time> times_;
};

struct Event {
  uint16_t actor = 0;
  Time time = 0;  ///< 0: before everything
  [[nodiscard]] bool over(Clock clock) const { return clock[actor] >= time; }
};

/// A chunk of a buffer.
class Cell {
 public:
  Value value;
  /// Messages sent from this chunk and not yet taken: a link may read it at any time.
  uint32_t travelling = 0;

  [[nodiscard]] const char* Read(Clock clock, Event event) {
    if (value.ranks == 0) return "reads what was never written";
    if (!written_.over(clock)) return "reads while it may be written";
    // A write ordered after this read is ordered after all reads that are over by now.
    if (!last_read_.over(clock)) other_reads_.push_back(last_read_);
    last_read_ = event;
    return nullptr;
  }
  [[nodiscard]] const char* Write(Clock clock, Event event, const Value& what) {
    if (travelling > 0) return "overwrites what is still to be sent";
    if (!written_.over(clock)) return "writes while it may be written";
    bool all_read = last_read_.over(clock);
    for (const Event& read : other_reads_) all_read = all_read && read.over(clock);
    if (!all_read) return "overwrites what may still be read";
    value = what;
    written_ = event;
    last_read_ = {};
    other_reads_.clear();
    return nullptr;
  }

 private:
  Event written_;
  Event last_read_;
  std::vector<Event> other_reads_;  ///< not known to be over at the last read
};

}  // namespace horoacc::schedule
