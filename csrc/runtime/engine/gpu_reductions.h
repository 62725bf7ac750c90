#pragma once
// Collectives that GPUs carry out, if the ranks agree that they can.
#include <functional>
#include <memory>
#include <optional>

#include "execute/cuda/host/gpu_group.h"
#include "runtime/engine/device_calls.h"
#include "runtime/sets/process_set.h"

namespace horoacc {

/// Whether GPUs can reduce the request in a mode; otherwise the host does.
[[nodiscard]] bool FitsGpuMode(const Request& request, GpuMode mode, uint32_t ranks);

/// Under the driver's lock.
class GpuReductions {
 public:
  /// Makes the execution on the host, once the tensors have come there. Null: nothing is to do.
  using HostExecution = std::function<std::unique_ptr<Execution>(Status&)>;
  /// The same on GPUs, in a mode that the ranks have agreed on.
  using GpuExecution = std::function<std::unique_ptr<Execution>(GpuMode, Status&)>;

  GpuReductions(Job& job, DeviceCalls& devices) : job_(job), devices_(devices) {}

  /// Whether GPUs carry it out, or its inputs may still be on their way from them. On GPUs on all
  /// ranks of the host, or on none: it depends on what they have agreed on.
  [[nodiscard]] static bool MayRun(const ProcessSet& set, const Running& running) {
    return running.OnGpu() && MayRunOnGpus(set, running);
  }
  /// Waits until the ranks have agreed on a mode, then runs in it, or on the host.
  std::unique_ptr<Execution> Make(ProcessSet& set, Running& running, HostExecution on_host,
                                  GpuExecution on_gpus);
  /// Of a set on one host, or by NCCL.
  std::unique_ptr<Execution> MakeModeRun(ProcessSet& set, Running& running, GpuMode mode,
                                         Status& status);

 private:
  [[nodiscard]] static bool MayRunOnGpus(const ProcessSet& set, const Running& running);
  [[nodiscard]] static std::optional<GpuMode> ModeOf(ProcessSet& set, Running& running);
  std::unique_ptr<Execution> MakeExchangeRun(ProcessSet& set, const Running& running, GpuMode mode,
                                             Status& status);
  /// The set's GPUs; null: the host reduces.
  cuda::GpuGroup* FindGpuGroup(ProcessSet& set, const Running& running);

  Job& job_;
  DeviceCalls& devices_;
};

}  // namespace horoacc
