#pragma once
// Allreduce between hosts of private memory, composed: inputs pass through windows to the rails of
// the host, and every rank takes the results from the rails' memory.
#include <memory>
#include <optional>
#include <vector>

#include "execute/schedule/composed_allreduce.h"
#include "execute/shared_memory/window_ring.h"

namespace horoacc {

/// Copy in, add up, reduce between hosts, copy out, all at once. A rank shows each rail its part,
/// in windows by turns; a rail reads its own input where it lies. Beside the stage between hosts a
/// rank reads and writes 4S bytes, and each of R rails (P - 1)S/R more, for P ranks a host.
class ComposedWindows final : public Execution, private ChunkPipeline {
 public:
  /// `pieces`: with this rank's own memory. `between`: empty on ranks that are no rail. `gated`:
  /// results wait at the slot's gate.
  static Result<std::unique_ptr<ComposedWindows>> Make(
      const SetContext& context, ExecSlot& slot, std::vector<ReducePiece> pieces, Rail rail,
      bool wide, std::optional<BetweenHosts::Surroundings> between, bool gated = false);

  bool Advance() override;
  [[nodiscard]] bool complete() const override {
    return told_ && (!between_ || between_->run().complete());
  }
  [[nodiscard]] bool finished() const override {
    return complete() && slot_.slices_done.value.load(std::memory_order_acquire) == context_.ranks;
  }
  [[nodiscard]] bool settled() const override { return !gated_ || SlotGate(slot_.gate).opened(); }
  [[nodiscard]] bool dropped() const override { return gated_ && SlotGate(slot_.gate).dropped(); }
  [[nodiscard]] bool failed() const override {
    return ring_->failed() || (between_ && between_->run().failed());
  }
  [[nodiscard]] Error failure() const override {
    return ring_->failed() ? Execution::failure() : between_->run().failure();
  }

 private:
  /// A window of one rail's part: positions in its sums.
  struct Window {
    uint32_t rail;
    uint64_t begin, end;
  };

  ComposedWindows(const SetContext& context, ExecSlot& slot, std::vector<ReducePiece> pieces,
                  Rail rail, bool wide, bool gated);
  [[nodiscard]] bool IsOwn(const Window& window) const { return window.rail == context_.me; }
  [[nodiscard]] Result<uint64_t> Arrived() override;
  [[nodiscard]] Status Leave(uint64_t end) override;
  bool CopyIn();
  bool CopyOut();
  void ConsumeOthers();

  const SetContext& context_;
  ExecSlot& slot_;  ///< counts ranks that have all results
  const bool gated_;
  const std::vector<ReducePiece> pieces_;
  std::vector<RailPart> parts_;                     ///< by rail
  std::vector<RailPart::Progress> shown_, stored_;  ///< of this rank, by rail
  RailPart::Progress summed_;                       ///< of this rail
  std::vector<Window> windows_;
  std::vector<const std::byte*> inputs_;
  std::optional<WindowRing> ring_;
  std::unique_ptr<BetweenHosts> between_;
  bool told_ = false;
};

}  // namespace horoacc
