#pragma once
// The event stream as a Chrome trace (chrome://tracing, ui.perfetto.dev).
#include <memory>
#include <string>

#include "base/events.h"
#include "base/log.h"
#include "base/result.h"

namespace horoacc {

/// Writes a trace that is valid at every moment (see TraceFile). One lane (tid) a tensor; on it,
/// nested inside the tensor's life: NEGOTIATE_ALLREDUCE, QUEUE, ALLREDUCE (its path is an
/// argument), or the like of another collective, and RESULT. Events are handed to a writer thread;
/// the engine never waits for the disk. A full disk ends the timeline with one warning, not the
/// job.
class Timeline final : public EventSink {
 public:
  static Result<std::shared_ptr<Timeline>> Open(const std::string& path, int rank, const Log& log,
                                                bool mark_cycles);
  ~Timeline() override;
  void On(const Event& event) override;
  /// Writes the queued events and closes the file.
  Status Close();

 private:
  struct State;
  explicit Timeline(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace horoacc
