#pragma once
// Numbers that tell what the engine did. Relaxed: they order nothing.
#include <atomic>
#include <cstdint>

namespace horoacc {

struct Counters {
  std::atomic<uint64_t> submissions{0};
  std::atomic<uint64_t> decisions{0};
  std::atomic<uint64_t> buckets{0};       ///< decisions that ran an allreduce
  std::atomic<uint64_t> arena_bytes{0};   ///< input bytes reduced where the caller had put them
  std::atomic<uint64_t> staged_bytes{0};  ///< copied to shared memory at submission
  std::atomic<uint64_t> window_bytes{0};  ///< passed through window rings
  std::atomic<uint64_t> link_bytes{0};    ///< reduced by links between hosts, from where they lay
  std::atomic<uint64_t> gpu_bytes{0};     ///< copied from a GPU to memory that all ranks see
  std::atomic<uint64_t> gpu_leader_bytes{0};  ///< reduced on GPUs, by mode
  std::atomic<uint64_t> gpu_stream_bytes{0};
  std::atomic<uint64_t> gpu_kernel_bytes{0};
  std::atomic<uint64_t> gpu_nccl_bytes{0};
  std::atomic<uint64_t> gpu_composed_bytes{0};  ///< reduced on GPUs inside each of several hosts
  std::atomic<uint64_t> gpu_moved_bytes{0};     ///< of other collectives, from GPU to GPU
  std::atomic<uint64_t> gpu_overlapped_buckets{0};  ///< packed while earlier ones were reduced
  std::atomic<uint64_t> last_arriver{0};            ///< decisions that came with their result
  std::atomic<uint64_t> driven_waits{0};            ///< waits in which the caller drove the engine
  std::atomic<uint64_t> coordinator_wakes{0};
  std::atomic<uint64_t> waited_ns{0};  ///< callers were blocked in calls
  // Of locked plans (runtime/engine/locked_plan.h); `unlocks` by the reason.
  std::atomic<uint64_t> plan_locks{0};
  std::atomic<uint64_t> plan_rounds{0};
  std::atomic<uint64_t> plan_granted{0};  ///< calls that this host began without the root
  std::atomic<uint64_t> plan_dropped{0};  ///< and those among them that were dropped
  std::atomic<uint64_t> plan_unlocks_changed{0};
  std::atomic<uint64_t> plan_unlocks_wait{0};
  std::atomic<uint64_t> plan_unlocks_join{0};
  std::atomic<uint64_t> plan_unlocks_refused{0};  ///< this rank's own bucket was invalid
  std::atomic<uint64_t> plan_unlocks_peer{0};     ///< another rank had left
  std::atomic<uint64_t> plan_unlocks_end{0};
  std::atomic<uint64_t> plan_unlocks_tuned{0};
  std::atomic<uint64_t> data_moves{0};  ///< turns of the loop in which data came or went
};

}  // namespace horoacc
