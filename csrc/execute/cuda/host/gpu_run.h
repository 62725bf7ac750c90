#pragma once
// What the runs of all modes have in common.
#include <vector>

#include "execute/cuda/host/device_call.h"
#include "execute/cuda/host/gpu_group.h"
#include "execute/cuda/host/ticket.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// A decision on the stream of a GPU group. Its tensors stay the stream's until that is through
/// with them, however the run ends.
class GpuRun : public Execution {
 public:
  ~GpuRun() override;
  GpuRun(const GpuRun&) = delete;
  GpuRun& operator=(const GpuRun&) = delete;
  bool Advance() final;
  [[nodiscard]] bool complete() const final { return done_; }
  [[nodiscard]] bool failed() const final { return !status_.ok(); }
  [[nodiscard]] Error failure() const final { return status_.error(); }

 protected:
  /// `calls`: whose tensors these are; they outlive the run.
  GpuRun(GpuGroup& gpu_group, std::vector<DeviceCall*> calls);
  /// One bounded piece of work. False: a peer, or the GPU, has to move first.
  [[nodiscard]] virtual Result<bool> Go() = 0;
  /// The GPU group's stream goes on once the tensors are ready. Before anything else.
  [[nodiscard]] Status AwaitTensors() const;
  /// Whether what was recorded has run. Somebody has to ask again.
  [[nodiscard]] Result<bool> HasRun(const GpuEvent& event);
  [[nodiscard]] bool HasCome(Ticket& turn);
  /// What is on the stream by now brings the results: the run is complete.
  [[nodiscard]] Status Complete();

  GpuGroup& gpu_group_;  // NOLINT(misc-non-private-member-variables-in-classes)
  Watch watch_;

 private:
  [[nodiscard]] Status Land() const;

  const std::vector<DeviceCall*> calls_;
  bool done_ = false;
  Status status_;
};

}  // namespace horoacc::cuda
