#pragma once
// One process set on this rank: its control segment, its controller, its queue and what runs.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/settings.h"
#include "execute/cuda/host/adasum_sums.h"
#include "execute/execution.h"
#include "negotiate/control_segment/set_segment.h"
#include "negotiate/controller.h"
#include "queue/set_queue.h"
#include "runtime/sets/multi_host_set.h"

namespace horoacc {

/// A decision being carried out here.
struct Running {
  Decision decision;
  std::vector<std::shared_ptr<CollectiveEntry>>
      entries;                               ///< by member; none if this rank takes no part
  std::optional<SetContext> context;         ///< of a partial decision; the execution uses it
  std::unique_ptr<cuda::AdasumSums> adasum;  ///< on GPUs, until it begins
  std::unique_ptr<Execution> execution;      ///< none if there was nothing to do

  /// Some of its tensors lie in GPUs' memory; so they do on every rank.
  [[nodiscard]] bool OnGpu() const {
    return std::ranges::any_of(entries, [](const auto& entry) { return entry->request.on_gpu; });
  }
};

/// All its ranks are on this host, or `multi_host` is there; `context` and `control` are of those
/// that are. If this rank is no member, then neither `control` nor `controller` is there.
struct ProcessSet {
  uint32_t id = 0;         ///< never used again
  uint32_t place = 0;      ///< on the control segment, and in the engine's list
  std::vector<int> ranks;  ///< global, ascending
  SetContext context;
  std::unique_ptr<SetSegment> control;
  std::unique_ptr<Controller> controller;
  SetQueue queue;
  std::unique_ptr<MultiHostSet> multi_host;
  /// What the ranks' GPUs have agreed on; kAuto: nothing yet.
  std::atomic<GpuMode> gpu_mode{GpuMode::kAuto};
  /// The number of the GPU whose tensors NCCL reduces across hosts: of the first call; -1: none
  /// yet.
  std::atomic<int> nccl_gpu{-1};

  // Guarded by the driver's lock.
  std::unique_ptr<cuda::GpuGroup> gpu_group;  ///< from the first reduction on GPUs on
  std::unique_ptr<Running> current;
  /// Runs beside it, in the order of the log: those that wait for none before them (Decision::run),
  /// and those that let later ones begin (Execution::overlaps).
  std::vector<std::unique_ptr<Running>> beside;
  /// Complete here, still read by peers; in the order of the log.
  std::deque<std::unique_ptr<Running>> draining;
  /// Blocks that peers may read until every rank has finished the log up to a position.
  std::deque<std::pair<uint64_t, std::byte*>> kept_blocks;
  std::atomic<uint64_t> moves{0};        ///< how often something of it went on here
  std::atomic<uint64_t> buckets_run{0};  ///< decisions begun: the same on all ranks of a host

  // The stall watch's, under the queue's lock: the moves that it saw at its latest look.
  uint64_t moves_seen = 0;
  int64_t moves_looked_ns = 0;
  int64_t moved_ns = 0;

  [[nodiscard]] bool Has(int rank) const { return std::ranges::binary_search(ranks, rank); }
  /// Which ranks have submitted a call that waits here, and which keep it waiting. nullopt: this
  /// rank does not know yet. `collective`: null for a join.
  [[nodiscard]] std::optional<Attendance> AttendanceOf(const CollectiveEntry* collective) const;

  [[nodiscard]] bool runs() const { return current || !beside.empty(); }
  /// Nothing of it goes on here or is read by peers, and nothing can begin. Under the driver's
  /// lock.
  [[nodiscard]] bool done() const {
    return controller->Ended() && queue.pending.load() == 0 && !runs() && draining.empty() &&
           kept_blocks.empty() && controller->Released();
  }
};

struct Job;

/// The set as this rank sees it. `place`: in the control segment and in the engine's list.
[[nodiscard]] std::unique_ptr<ProcessSet> MakeProcessSet(Job& job, uint32_t id, uint32_t place,
                                                         std::vector<int> ranks);

}  // namespace horoacc
