#pragma once
// One process set on this rank: its board, its plane, its queue and what runs.
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/settings.h"
#include "execute/cuda/team.h"
#include "execute/execution.h"
#include "negotiate/plane.h"
#include "negotiate/set_board.h"
#include "negotiate/spread_plane.h"
#include "queue/set_queue.h"
#include "runtime/spread_set.h"

namespace horoacc {

/// A decision being carried out here.
struct Running {
  Decision decision;
  std::vector<std::shared_ptr<Entry>> entries;  ///< by member; none if this rank takes no part
  std::optional<SetContext> context;            ///< of a partial decision; the execution uses it
  std::unique_ptr<Execution> execution;         ///< none if there was nothing to do
};

struct ProcessSet {
  uint32_t id = 0;         ///< never used again
  uint32_t place = 0;      ///< on the board, and in the engine's list
  std::vector<int> ranks;  ///< global, ascending
  SetContext context;
  std::unique_ptr<SetBoard> board;
  std::unique_ptr<Plane> plane;
  SetQueue queue;
  /// If its ranks do not all share memory. Then `context` and `board` are this rank's alone, and
  /// `spread` is null if it is no member.
  std::unique_ptr<SpreadSet> spread;
  SpreadPlane* spread_plane = nullptr;
  /// What the ranks' GPUs have agreed on; kAuto: nothing yet.
  std::atomic<GpuMode> gpu_mode{GpuMode::kAuto};

  // Guarded by the driver's lock.
  std::unique_ptr<cuda::Team> gpu_team;  ///< from the first reduction on GPUs on
  std::unique_ptr<Running> current;
  std::deque<std::unique_ptr<Running>> lingering;  ///< complete here, still read by peers
  /// Blocks that peers may read until every rank has finished the log up to a position.
  std::deque<std::pair<uint64_t, std::byte*>> kept_blocks;
  /// How often something of it went on here. The stall watch looks whether it still does, and keeps
  /// what it saw under the queue's lock.
  std::atomic<uint64_t> moves{0};
  uint64_t moves_seen = 0;
  int64_t moves_looked_ns = 0;
  int64_t moved_ns = 0;
  std::atomic<uint64_t> buckets_run{0};  ///< decisions begun: the same number on all ranks

  /// Nothing of it goes on here or is read by peers, and nothing can begin. Under the driver's
  /// lock.
  [[nodiscard]] bool done() const {
    return plane->Ended() && queue.pending.load() == 0 && !current && lingering.empty() &&
           kept_blocks.empty() && plane->Released();
  }
};

}  // namespace horoacc
