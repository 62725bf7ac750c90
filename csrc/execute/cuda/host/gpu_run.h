#pragma once
// Runs of a decision on GPUs: GpuRun, which all of them share, and ModeRun, which the modes that
// reduce share.
#include <deque>
#include <optional>
#include <vector>

#include "execute/cuda/host/bucket.h"
#include "execute/cuda/host/ticket.h"
#include "execute/execution.h"

namespace horoacc::cuda {

/// A decision on the streams of a GPU group. However the run ends, the tensors' memory is not used
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
  /// Whether they are, for a run that must not hold up the stream.
  [[nodiscard]] Result<bool> AreTensorsReady();
  /// Whether the GPU has come to the event; if not, the engine's threads poll.
  [[nodiscard]] Result<bool> HasRun(const GpuEvent& event);
  /// The engine's threads poll until the next piece: what this one waits for rings nobody.
  void Poll() { polls_ = true; }
  /// Tells the others in a count of this rank's peer info once the GPU has come to the event.
  /// False: it has not.
  [[nodiscard]] Result<bool> TellBehind(const GpuEvent& event,
                                        std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t value);
  /// The run is complete: the work that is on the stream by now yields the results.
  [[nodiscard]] Status Complete();

  GpuGroup& group_;  // NOLINT(misc-non-private-member-variables-in-classes)

 private:
  [[nodiscard]] Status HandOver() const;

  const std::vector<DeviceCall*> calls_;
  Watch watch_;
  bool polls_ = false;
  bool done_ = false;
  Status status_;
};

/// A bucket in a mode in which GPUs reduce. Each window is packed, reduced as the mode does it, and
/// unpacked, while others of this or the next bucket are in other stages (window_line.h).
class ModeRun : public GpuRun {
 public:
  /// Once it only waits for windows that are packed.
  [[nodiscard]] bool overlaps() const final { return packed_ == bucket_.windows(); }

 protected:
  /// With kStreams the mode's streams or kernels wait for other ranks', so the run reduces only
  /// while it holds the process set's ticket. With kHosts nothing on the GPU waits.
  enum class Waits { kHosts, kStreams };
  struct Window {
    size_t index = 0;  ///< in the bucket
    uint64_t number = 0;
    GpuEvent packed{}, reduced{};  ///< behind this rank's launches; null if there are none
  };
  ModeRun(Bucket bucket, std::vector<DeviceCall*> calls, Waits waits);
  /// Enqueues more behind the packing of a window. The ticket may not have been called yet.
  [[nodiscard]] virtual Status EndPacking(Window& window) = 0;
  /// Continues to enqueue the reduction of the next window, on the stream for reductions. True: all
  /// of this rank's part is there.
  [[nodiscard]] virtual Result<bool> Launch(Window& window) = 0;
  /// Whether the first window is reduced on all ranks' GPUs.
  [[nodiscard]] virtual Result<bool> IsReduced(const Window& window) {
    return HasRun(window.reduced);
  }
  /// For EndPacking, and for Launch: an event, and that the reduction waits for it.
  [[nodiscard]] Status RecordPacked(Window& window) const;
  [[nodiscard]] Status AwaitPacked(Window& window) const;

  const Bucket bucket_;  // NOLINT(misc-non-private-member-variables-in-classes)

 private:
  [[nodiscard]] Result<bool> Go() final;
  [[nodiscard]] Result<bool> PackNext();
  [[nodiscard]] Result<bool> LaunchNext();
  [[nodiscard]] Result<bool> UnpackNext();

  std::optional<Ticket> ticket_;
  size_t packed_ = 0;           ///< windows
  std::deque<Window> windows_;  ///< those that are packed and not unpacked
  size_t launched_ = 0;         ///< of these
};

}  // namespace horoacc::cuda
