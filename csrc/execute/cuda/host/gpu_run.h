#pragma once
// Runs of a decision on GPUs: GpuRun, which all of them share, and ModeRun, which the modes that
// reduce share.
#include <optional>
#include <vector>

#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/ticket.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// A decision on the stream of a GPU group. However the run ends, the tensors' memory is not used
/// again before the stream is through with it.
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
  /// `calls` own the tensors and outlive the run.
  GpuRun(GpuGroup& group, std::vector<DeviceCall*> calls);
  /// Does one bounded piece of work. False: a peer or the GPU has to move first.
  [[nodiscard]] virtual Result<bool> Go() = 0;
  /// Makes the GPU group's stream wait until the tensors are ready.
  [[nodiscard]] Status AwaitTensors() const;
  /// Whether the GPU has come to the event; if not, the engine's threads poll.
  [[nodiscard]] Result<bool> HasRun(const GpuEvent& event);
  /// Tells the others in a count of this rank's peer info once the GPU has come to the event.
  /// False: it has not.
  [[nodiscard]] Result<bool> TellBehind(const GpuEvent& event,
                                        std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t value);
  /// The run is complete: the work that is on the stream by now yields the results.
  [[nodiscard]] Status Complete();

  GpuGroup& group_;  // NOLINT(misc-non-private-member-variables-in-classes)
  Watch watch_;

 private:
  [[nodiscard]] Status HandOver() const;

  const std::vector<DeviceCall*> calls_;
  bool done_ = false;
  Status status_;
};

/// A bucket in a mode in which GPUs reduce. Each window is packed, reduced as the mode does it, and
/// unpacked.
class ModeRun : public GpuRun {
 protected:
  /// With kStreams the mode's streams or kernels wait for other ranks', so the run reduces only
  /// while it holds the process set's ticket. With kHosts nothing on the GPU waits.
  enum class Waits { kHosts, kStreams };
  ModeRun(Bucket bucket, std::vector<DeviceCall*> calls, Waits waits);
  /// Enqueues more behind the packing of a window. The ticket may not have been called yet.
  [[nodiscard]] virtual Status Begin() { return {}; }
  /// Continues with a packed window as far as it can. True: the window is reduced on all ranks'
  /// GPUs, or ahead on this rank's stream.
  [[nodiscard]] virtual Result<bool> Reduce() = 0;

  // NOLINTBEGIN(misc-non-private-member-variables-in-classes)
  const Bucket bucket_;
  size_t window_ = 0;
  uint64_t number_ = 0;  ///< of the window among the GPU group's; the same on all ranks
  GpuEvent reduced_;     ///< null until the mode has enqueued all of the window
                         // NOLINTEND(misc-non-private-member-variables-in-classes)

 private:
  [[nodiscard]] Result<bool> Go() final;

  std::optional<Ticket> ticket_;
  bool packed_ = false;
};

}  // namespace horoacc::cuda
