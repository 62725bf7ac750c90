#pragma once
// What one rank's engine stands on: made once by the launch, used by every part of the engine.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/events.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/tuned.h"
#include "negotiate/control_segment/control_segment.h"
#include "negotiate/control_segment/segment_lock.h"
#include "negotiate/multi_host/control_mux.h"
#include "runtime/health/stack_source.h"
#include "runtime/job/calls.h"
#include "runtime/job/counters.h"
#include "runtime/job/reading.h"
#include "runtime/job/shared_blocks.h"
#include "runtime/job/task_threads.h"
#include "runtime/sets/multi_host_job.h"
#include "schedule/measured.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/control/control_links.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/mpi/mpi_session.h"
#include "transport/net/interfaces.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

struct Placement {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int cross_rank = 0, cross_size = 1;
};

/// What the transport room has made before the engine starts.
struct EngineParts {
  Placement placement;
  std::unique_ptr<Bootstrap> bootstrap;
  HostShare share;
  std::unique_ptr<ControlLinks> links;  ///< between hosts; null: all ranks share memory
  std::shared_ptr<FaultPoints> faults;  ///< null: as the settings order
  std::optional<MultiHostParts>
      multi_host;                   ///< if not all ranks share memory; then there are links
  std::shared_ptr<MpiSession> mpi;  ///< if the job uses MPI
  std::vector<std::shared_ptr<void>> keep_alive;
  std::string object_key;  ///< ha_object_key
};

/// Thirty-one members, since it is the list of what the parts share; it has no behaviour but
/// looking things up. Everything is thread-safe by itself, or does not change after Start.
struct Job {
  Job(Settings agreed, EngineParts parts);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Connects the ranks of other hosts and learns what all ranks must know of each other. `aborted`
  /// is called when a rank of another host has aborted the job.
  Status StartMultiHost(std::function<void(const Error&)> aborted);
  /// From now on messages over the links wake this rank's threads.
  Status WatchLinks();
  /// Gives back all that is not needed to answer a binding: links, mappings of other ranks'
  /// memory, descriptors. The first `places` of the control segment stay readable, as zeroes.
  void Release(uint32_t places);

  [[nodiscard]] int rank() const { return placement.rank; }
  [[nodiscard]] int local_rank() const { return share.local_rank; }
  [[nodiscard]] RankState& own_state() const { return control.state(share.local_rank); }
  /// The name of a rank's host.
  [[nodiscard]] std::string HostOf(int rank) const;
  /// The local rank of a rank of this host.
  [[nodiscard]] uint32_t LocalOf(int rank) const;
  /// A rank of this host has shut down in good order.
  [[nodiscard]] bool HasLeft(uint32_t local) const;
  /// The process of a rank of this host exists. True for ranks that are threads of this process.
  [[nodiscard]] bool IsAlive(uint32_t local) const;
  /// For waits for a lock of the control segment.
  [[nodiscard]] LockWatch lock_watch() const;
  [[nodiscard]] bool aborted() const { return control.has_aborted(); }
  void RingAll(Urgency urgency) const;
  void RingOwn(Urgency urgency) const { doorbells.Ring(share.local_rank, urgency); }
  void WakeCoordinator() const { doorbells.WakeCoordinator(share.local_rank); }
  [[nodiscard]] bool HasUnsent() const {
    return (mux && mux->HasUnsent()) || (multi_host && multi_host->HasUnsent());
  }

  const Settings settings;
  Tuned tuned{settings};
  const Placement placement;
  const Log log;
  std::vector<std::shared_ptr<void>> keep_alive;
  std::shared_ptr<MpiSession> mpi;
  std::unique_ptr<Bootstrap> bootstrap;
  HostShare share;
  std::unique_ptr<ControlLinks> links;
  std::unique_ptr<ControlMux> mux;  ///< over `links`
  const ControlSegment control;
  Doorbells doorbells;
  const std::shared_ptr<Arena> arena;              ///< this rank's
  SharedBlocks blocks;                             ///< in the arena
  std::optional<MultiHostParts> multi_host_parts;  ///< until StartMultiHost
  std::unique_ptr<MultiHostJob> multi_host;        ///< null: all ranks share memory
  const std::shared_ptr<FaultPoints> faults;
  const std::string host = HostName();                      ///< this host's name
  std::vector<std::string> host_names;                      ///< by rank, if there are several
  std::shared_ptr<const schedule::MeasuredTable> measured;  ///< agreed; of jobs on several hosts
  EventStream events;
  StackSource stacks;
  Counters counters;
  TaskThreads callbacks{16, "horoacc-calls"};
  std::atomic<bool> stopping{false};
  /// Shows that this rank lives and looks at its peers: the engine's; empty before its Start.
  std::function<void()> watch_peers;
  /// What this rank tells whoever looks at the job; the engine's.
  std::function<std::string(const ReadingScope&)> reading;
  /// The engine's, from its Start on.
  std::function<PlansState()> plans_state = [] { return PlansState(); };
  /// Work of GPUs that waiting threads ask after: no GPU wakes a thread.
  std::atomic<uint32_t> gpu_polls{0};
  /// Calls in flight of sets that this rank leads: control links bring what is decided.
  std::atomic<uint32_t> led_calls{0};
  /// Messages in flight that data links may have to bring.
  std::atomic<uint32_t> linked_messages{0};
  int64_t spin_ns = 0;     ///< how long a waiting thread spins before it sleeps
  bool must_poll = false;  ///< some links wake nobody (MPI)
};

}  // namespace horoacc
