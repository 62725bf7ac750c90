#pragma once
// From a framework's call to an entry in its set's queue.
#include <memory>
#include <string>

#include "runtime/engine/device_calls.h"
#include "runtime/engine/handles.h"
#include "runtime/engine/publisher.h"
#include "runtime/job/calls.h"
#include "runtime/job/failure.h"
#include "runtime/sets/set_table.h"

namespace horoacc {

/// Any thread.
class Submitter {
 public:
  Submitter(Job& job, Failure& failure, SetTable& sets, Handles& handles, DeviceCalls& devices)
      : job_(job), failure_(failure), sets_(sets), handles_(handles), devices_(devices) {}

  Result<uint64_t> Submit(Submission&& submission);

 private:
  [[nodiscard]] Result<std::shared_ptr<ProcessSet>> FindOwnSet(uint32_t id) const;
  Result<uint64_t> SubmitJoin(ProcessSet& set, Submission&& submission);
  [[nodiscard]] Status Enqueue(ProcessSet& set, const std::shared_ptr<CollectiveEntry>& entry);
  [[nodiscard]] Status NameEntry(ProcessSet& set, CollectiveEntry& entry);
  [[nodiscard]] Status CheckOpen(const ProcessSet& set, const std::string& tensor) const;
  uint64_t TakeOverJoin(SetQueue& queue, JoinEntry& entry);
  void EmitQueued(ProcessSet& set, Entry& entry, const Request& request);
  /// Removes an entry that could not be published.
  void TakeBack(SetQueue& queue, Entry& entry);

  Job& job_;
  Failure& failure_;
  SetTable& sets_;
  Handles& handles_;
  DeviceCalls& devices_;
  Publisher publisher_{job_};
};

}  // namespace horoacc
