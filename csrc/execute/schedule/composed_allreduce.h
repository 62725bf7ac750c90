#pragma once
// Allreduce between hosts of buffers that all ranks of each host see: every host adds its ranks'
// inputs up, hosts exchange these sums by a schedule, and results go to all ranks of the host.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "execute/chunk_pipeline.h"
#include "execute/execution.h"
#include "execute/schedule/rail_part.h"
#include "execute/schedule/schedule_run.h"
#include "execute/shared_memory/result_gate.h"

namespace horoacc {

/// The stage between hosts of one rail, over a vector of sums in memory of its own, which the
/// host's ranks share.
class BetweenHosts {
 public:
  struct Surroundings {
    DataLinks* links = nullptr;
    std::shared_ptr<const schedule::Schedule> schedule;  ///< over the rail's ranks
    RunGroup group;
    RunOptions options;
    RunMemory memory;
    /// Of the sums: by default `memory`'s arena.
    std::function<std::byte*(uint64_t)> take{};
    std::function<void(std::byte*)> retire{};
  };
  /// `flow` fills the sums and takes the results, and outlives this.
  static Result<std::unique_ptr<BetweenHosts>> Make(Surroundings surroundings, const RailPart& part,
                                                    ChunkPipeline& flow);
  ~BetweenHosts();

  [[nodiscard]] std::byte* sums() const { return sums_; }
  [[nodiscard]] ScheduleRun& run() { return *run_; }
  [[nodiscard]] const ScheduleRun& run() const { return *run_; }

 private:
  BetweenHosts() = default;
  std::function<void(std::byte*)> retire_;
  std::byte* sums_ = nullptr;
  std::unique_ptr<ScheduleRun> run_;
};

using SlotGate = ResultGate<std::atomic<uint32_t>>;

/// A rail adds up its part of all ranks' inputs, and stores its results in all ranks' outputs.
class ComposedAllreduce final : public Execution, private ChunkPipeline {
 public:
  /// `between`: empty on ranks that are no rail, which wait for the rails of their host. `gated`:
  /// results wait at the slot's gate.
  static Result<std::unique_ptr<ComposedAllreduce>> Make(
      const SetContext& context, ExecSlot& slot, ReduceList list, Rail rail, bool wide,
      std::optional<BetweenHosts::Surroundings> between, bool gated = false);

  bool Advance() override;
  [[nodiscard]] bool complete() const override {
    return (!between_ || told_) &&
           slot_.slices_done.value.load(std::memory_order_acquire) == rails_;
  }
  [[nodiscard]] bool settled() const override { return !gated_ || SlotGate(slot_.gate).opened(); }
  [[nodiscard]] bool dropped() const override { return gated_ && SlotGate(slot_.gate).dropped(); }
  [[nodiscard]] bool failed() const override { return between_ && between_->run().failed(); }
  [[nodiscard]] Error failure() const override { return between_->run().failure(); }

 private:
  ComposedAllreduce(const SetContext& context, ExecSlot& slot, ReduceList list, Rail rail,
                    bool wide, bool gated)
      : context_(context),
        slot_(slot),
        gated_(gated),
        rails_(rail.count),
        list_(std::move(list)),
        part_(list_.pieces, rail, wide) {}
  [[nodiscard]] Result<uint64_t> Arrived() override;
  [[nodiscard]] Status Leave(uint64_t end) override;
  bool Store();

  const SetContext& context_;
  ExecSlot& slot_;  ///< counts rails that have stored all their results
  const bool gated_;
  const uint32_t rails_;
  const ReduceList list_;
  RailPart part_;
  RailPart::Progress summed_, stored_;
  uint64_t final_ = 0;  ///< up to here the sums are those over all hosts
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::unique_ptr<BetweenHosts> between_;
  bool told_ = false;
};

}  // namespace horoacc
