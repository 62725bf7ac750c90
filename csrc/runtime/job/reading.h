#pragma once
// What somebody who looks at a running job wants to know of a rank (trace/reading_server.h).
#include <cstdint>
#include <string>
#include <utility>

#include "negotiate/wire.h"

namespace horoacc {

inline constexpr size_t kMostReading = 4 << 20;  // bytes of a text that another host is sent

struct ReadingScope {
  bool stack = false;   ///< with Python's stacks, which costs milliseconds and may take seconds
  double seconds = 0;   ///< events of so long ago,
  uint32_t events = 0;  ///< and no more than so many, the latest,
  size_t bytes = kMostReading;  ///< and what fits into so long a text, with calls in at most half
};

inline void Put(WireWriter& writer, const ReadingScope& scope) {
  writer.Put(static_cast<uint8_t>(scope.stack));
  writer.Put(scope.seconds);
  writer.Put(scope.events);
}

inline ReadingScope GetReadingScope(WireReader& reader) {
  ReadingScope scope;
  scope.stack = reader.Get<uint8_t>() != 0;
  scope.seconds = reader.Get<double>();
  scope.events = reader.Get<uint32_t>();
  return scope;
}

}  // namespace horoacc
