#pragma once
// From a decision to the execution that carries it out on this rank.
#include <memory>
#include <string_view>

#include "runtime/engine/device_calls.h"
#include "runtime/engine/gpu_reductions.h"
#include "runtime/sets/process_set.h"

namespace horoacc {

/// Under the driver's lock.
class Executions {
 public:
  Executions(Job& job, DeviceCalls& devices) : job_(job), devices_(devices), gpus_(job, devices) {}

  /// Prepares the outputs of the entries, and returns the execution of a decision to run; null:
  /// nothing is left to do.
  Result<std::unique_ptr<Execution>> Make(ProcessSet& set, Running& running);

 private:
  std::unique_ptr<Execution> MakeOnHost(ProcessSet& set, Running& running, Status& status);
  Result<std::unique_ptr<Execution>> MakeBetweenHosts(ProcessSet& set, Running& running);
  Result<std::unique_ptr<Execution>> RunBetweenHosts(ProcessSet& set, Running& running,
                                                     bool on_gpus);
  Result<std::unique_ptr<Execution>> MakeComposed(ProcessSet& set, Running& running, bool on_gpus,
                                                  std::string_view& how);
  Result<std::unique_ptr<Execution>> MakeDrained(ProcessSet& set, const Decision& decision);
  std::optional<BetweenHosts::Surroundings> Between(ProcessSet& set,
                                                    MultiHostSet::ComposedSchedule& composed,
                                                    uint64_t window_bytes, uint64_t run);

  Job& job_;
  DeviceCalls& devices_;
  GpuReductions gpus_;
};

}  // namespace horoacc
