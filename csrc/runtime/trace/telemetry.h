#pragma once
// An engine's counters, its timeline, and its flight record of the last events and calls in flight.
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "runtime/job/job.h"
#include "runtime/sets/set_table.h"
#include "runtime/trace/timeline.h"

namespace horoacc {

/// Any thread may call it.
class Telemetry {
 public:
  Telemetry(Job& job, SetTable& sets) : job_(job), sets_(sets) {}

  /// Lines `name=value`.
  [[nodiscard]] std::string CounterText() const;
  /// Only rank 0 writes, as in Horovod: all ranks may call this with the same path.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();
  /// What a running rank tells whoever looks at it: JSON as of the flight record, with the
  /// counters, the process's share of a processor, and why the job has failed, if it has.
  [[nodiscard]] std::string Reading(const ReadingScope& scope);
  /// Replaces this rank's file in the setting `flight_dir`, if there is one; another thread writes,
  /// since the disk may be slow. `ask_others`: names the ranks that calls wait for.
  void RecordFlight(const std::string& reason, bool ask_others);

 private:
  [[nodiscard]] std::string CallsInFlight(int64_t now_ns, bool ask_others, size_t most_bytes) const;
  [[nodiscard]] std::string PlansText() const;
  [[nodiscard]] std::string FlightText(const std::string& reason, bool ask_others,
                                       const ReadingScope& scope, const std::string& more);

  Job& job_;
  SetTable& sets_;
  const int64_t began_ns_ = NowNs();
  std::mutex mutex_;  ///< guards timeline_
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace horoacc
