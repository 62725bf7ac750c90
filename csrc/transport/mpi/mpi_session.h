#pragma once
// The way to MPI through the plug-in. The core does not link MPI.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "transport/control/control_links.h"
#include "transport/mpi/mpi_choice.h"
#include "transport/mpi/mpi_plugin.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

struct MpiOptions {
  /// The plug-in, or the folder that holds libhoroacc_mpi_openmpi.so and libhoroacc_mpi_mpich.so.
  std::string plugin;
  MpiChoice choice;
  int64_t deadline_ns = 0;    ///< CLOCK_MONOTONIC; MPI's own initialisation knows no deadline
  Cancellation cancellation;  ///< during rendezvous; MPI's own initialisation does not ask it
};

/// This process's way to MPI: a communicator of its own. The bootstrap and the links made on it
/// (mpi_links.h) keep it alive. Each of them may be used by one thread at a time; a lock is held
/// around every call of MPI, which does not block.
class MpiSession {
 public:
  /// Loads libmpi (RTLD_GLOBAL, as its own plug-ins need it) and the plug-in, initialises MPI
  /// unless mpi4py has, and joins the other ranks. All ranks of the job call it. kConfig if no
  /// libmpi or no plug-in is found, or if MPI was initialised for fewer threads than are needed.
  static Result<std::shared_ptr<MpiSession>> Open(const MpiOptions& options);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// The thread level that MPI was initialised with, by this or other code.
  [[nodiscard]] ha_mpi_threads threads() const;
  /// Of the caller of Open, during rendezvous.
  [[nodiscard]] const Cancellation& cancellation() const { return cancellation_; }
  /// "Open MPI v5.0.11", "MPICH Version: 5.0.2"
  [[nodiscard]] std::string library_version() const;

  /// After an abort: from now on MPI is never called, not even to free or finalise.
  void Abandon() { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const { return abandoned_; }
  /// Before the process ends normally: finalises MPI if HoroACC initialised it (in this session or
  /// an earlier one) and the session was not abandoned. Blocks until all ranks do the same, and
  /// MPI cannot be used afterwards, so it is no part of shutting down an engine.
  Status Finalize();

  /// Messages without copies; for `ha_tagged_calls`, this session is `self`. Once it is abandoned,
  /// these calls do nothing.
  [[nodiscard]] static ha_tagged_calls TaggedCalls();
  [[nodiscard]] uint32_t most_tag() const;

  /// Copies `bytes` and returns at once.
  Status Send(ha_mpi_channel channel, int peer, std::span<const std::byte> bytes);
  /// The next message of the channel, or nothing.
  Result<std::optional<ControlMessage>> Receive(ha_mpi_channel channel);
  /// Progresses sends. True if MPI has not taken every message yet.
  [[nodiscard]] bool HasUnsent();
  /// Waits until MPI has taken every message; false at the deadline.
  bool Drain(int64_t deadline_ns);

 private:
  struct Libraries;
  explicit MpiSession(std::unique_ptr<Libraries> libraries);
  Status Join(int64_t deadline_ns);

  std::unique_ptr<Libraries> libraries_;
  const ha_mpi_plugin* plugin_ = nullptr;
  ha_mpi* mpi_ = nullptr;
  Cancellation cancellation_;
  std::mutex mutex_;  ///< around every call of MPI; no other lock is taken under it
  std::atomic<bool> abandoned_{false};
};

}  // namespace horoacc
