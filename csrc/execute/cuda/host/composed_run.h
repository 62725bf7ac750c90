#pragma once
// Allreduce of a set on several hosts whose ranks' GPUs share memory on each host: GPUs add up
// inside the host, hosts exchange the sums, and GPUs take the results.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "execute/chunk_pipeline.h"
#include "execute/cuda/host/gpu_run.h"
#include "execute/schedule/composed_allreduce.h"

namespace horoacc::cuda {

/// Hosts see the same bytes of each other as of ComposedWindows, so that each may choose by itself.
/// The vector goes in windows through places in the ranks' fusion buffers. Every rank shows its
/// input of a window to all; each rail adds up its part from all buffers, copies the sums to the
/// host, and back once they are those of all hosts; every rank takes the results from the rails'
/// buffers. These stages run at once for different windows. No kernel and no stream waits for
/// another process: ranks tell each other when their GPUs have done a stage.
class ComposedRun final : public GpuRun, private ChunkPipeline {
 public:
  /// Whether a tensor's sums have the tensor's type on their way between hosts; others are the
  /// CPU's. `wide`: see Payload.
  [[nodiscard]] static bool Fits(DType type, ReduceOp op, const Scale& scale, bool wide);
  /// `calls` own the tensors; inputs and outputs of `pieces` lie on the GPU. `between`: empty on
  /// ranks that are no rail.
  [[nodiscard]] static Result<std::unique_ptr<ComposedRun>> Make(
      GpuGroup& group, std::vector<DeviceCall*> calls, std::vector<ReducePiece> pieces, Rail rail,
      std::optional<BetweenHosts::Surroundings> between);

 private:
  /// Windows that a stage has begun, and those that the GPU is through with.
  struct Stage {
    uint64_t begun = 0, done = 0;
    /// By window: its end, and an event that its work waits for.
    std::deque<std::pair<GpuEvent, GpuEvent>> events;
  };
  /// Part of a window of one rail.
  struct Section {
    RailPart::Slice slice;
    uint64_t offset = 0;  ///< in the window's place
  };
  static constexpr uint64_t kPlaces = 2;  ///< for inputs, and as many for results

  ComposedRun(GpuGroup& group, std::vector<DeviceCall*> calls, std::vector<ReducePiece> pieces,
              Rail rail);
  [[nodiscard]] Result<bool> Go() override;
  [[nodiscard]] Result<bool> Show();
  [[nodiscard]] Result<bool> Sum();
  [[nodiscard]] Result<bool> Store();
  [[nodiscard]] Result<bool> Take();
  [[nodiscard]] Status Began(Stage& stage, void* stream, GpuEvent after = nullptr);
  /// Whether the GPU is through with one more window of the stage.
  [[nodiscard]] Result<bool> Ended(Stage& stage);
  [[nodiscard]] Result<uint64_t> Arrived() override { return Position(summed_.done); }
  [[nodiscard]] Status Leave(uint64_t end) override;

  [[nodiscard]] bool IsRail() const { return between_ != nullptr; }
  [[nodiscard]] const RailPart& OwnPart() const { return parts_[group_.me()]; }
  /// Where window `window` of this rail's part begins.
  [[nodiscard]] uint64_t Position(uint64_t window) const {
    return std::min(window * place_bytes_, OwnPart().bytes());
  }
  /// Of a window's inputs, where a rail's sums take the place of its own, or of its results.
  [[nodiscard]] std::byte* Place(uint32_t rank, uint32_t rail, uint64_t window, bool result) const;
  /// Whether all ranks have told so of the window whose place this one takes.
  [[nodiscard]] bool IsFree(std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t window) const {
    const uint64_t number = first_ + window;
    return number <= kPlaces || group_.AllHave(count, number - kPlaces);
  }
  [[nodiscard]] std::vector<Section> Cut(uint32_t rail, uint64_t window,
                                         RailPart::Progress& progress) const;
  /// Reduces what is equal in type, operation and factors at once.
  [[nodiscard]] Status Reduce(const std::vector<Section>& sections,
                              const std::vector<std::byte*>& sources, bool finish) const;
  void Tell(std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t windows) const {
    group_.Tell(count, first_ + windows - 1);
  }

  const std::vector<ReducePiece> pieces_;
  std::vector<RailPart> parts_;  ///< by rail
  uint64_t place_bytes_ = 0;
  uint64_t windows_ = 0;
  uint64_t first_ = 0;                                   ///< number of the first window
  Stage shown_, summed_, stored_, taken_;                ///< in this order
  std::vector<RailPart::Progress> shown_at_, taken_at_;  ///< by rail
  RailPart::Progress summed_at_, stored_at_;
  bool begun_ = false;
  uint64_t final_ = 0;  ///< up to here this rail's sums are those over all hosts
  std::unique_ptr<BetweenHosts> between_;
};

}  // namespace horoacc::cuda
