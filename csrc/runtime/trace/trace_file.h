#pragma once
// A growing JSON array of trace events on disk, closed after every write.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

/// `text` as a JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string JsonString(std::string_view text);

/// Time in a trace: 1/8 us since its start. Viewers read a time in us as a double and cut it to
/// whole ns (Perfetto, CoerceToTs); 1/8 is the finest step of which both are exact, and a slice
/// that rounding makes outlast the one around it would be dropped.
using Ticks = int64_t;
inline constexpr int64_t kTickNs = kMicrosecond / 8;

/// The events of one rank. The array is closed again by the same write that adds to it. A write
/// keeps to one page of the page cache where it can, because a kill ends a write between two pages
/// only: then the file has whole events. If the killed write reached into the next page, the last
/// bracket is missing, which the Trace Event Format allows. Owned by one thread at a time.
///
/// Added events are on disk after the next Flush() at the latest. Flush() returns a write's
/// failure; events added after a failure are dropped. `args` are the inner part of a JSON object.
class TraceFile {
 public:
  /// Creates or empties the file and names the process. The error, kConfig, names the path.
  static Result<TraceFile> Create(const std::string& path, int rank);

  void AddLane(size_t lane, std::string_view title);
  /// Slices of one lane nest. Of slices that begin together the outer one is added first.
  void AddSlice(size_t lane, std::string_view name, Ticks from, Ticks to, std::string_view args);
  void AddInstant(size_t lane, std::string_view name, Ticks time, std::string_view args);
  /// A fact about the trace itself.
  void AddMetadata(std::string_view name, std::string_view args);
  [[nodiscard]] Status Flush();

 private:
  TraceFile(Fd fd, int rank) : fd_(std::move(fd)), rank_(std::to_string(rank)) {}
  void Add(std::string_view event);
  [[nodiscard]] Status Write(std::string_view bytes) const;

  Fd fd_;
  std::string rank_;
  uint64_t end_ = 0;  ///< where the closing bracket's line break lies
  std::string pending_;
  Status outcome_;
};

}  // namespace horoacc
