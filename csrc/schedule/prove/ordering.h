#pragma once
// Which events are ordered whatever the timing: vector clocks, and the accesses to a place in
// memory (Flanagan and Freund, "FastTrack", 2009).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule/prove/value.h"

namespace horoacc::schedule {

using Clock = std::vector<uint32_t>;  ///< by actor: the events of it that are surely over

inline void Join(Clock& clock, const Clock& other) {
  for (size_t k = 0; k < clock.size(); ++k) clock[k] = std::max(clock[k], other[k]);
}

struct Event {
  uint32_t actor = 0;
  uint32_t time = 0;  ///< 0: before everything
  [[nodiscard]] bool over(const Clock& clock) const { return clock[actor] >= time; }
};

/// A chunk of a buffer.
struct Cell {
  Value value;
  Event written;
  std::vector<Event> reads;  ///< since it was written
  /// Messages that were sent from here and not yet taken: a link may read them at any time.
  uint32_t travelling = 0;

  [[nodiscard]] const char* Read(const Clock& clock, Event event) {
    if (value.ranks == 0) return "reads what was never written";
    if (!written.over(clock)) return "reads while it may be written";
    reads.push_back(event);
    return nullptr;
  }
  [[nodiscard]] const char* Write(const Clock& clock, Event event, const Value& what) {
    if (travelling > 0) return "overwrites what is still to be sent";
    if (!written.over(clock)) return "writes while it may be written";
    for (const Event& read : reads) {
      if (!read.over(clock)) return "overwrites what may still be read";
    }
    value = what;
    written = event;
    reads.clear();
    return nullptr;
  }
};

}  // namespace horoacc::schedule
