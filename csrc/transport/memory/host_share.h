#pragma once
// Resources that the ranks of one host share: the control segment, each rank's memory, and eventfds
// to wake each other.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/memory/segment.h"
#include "transport/net/fd.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

struct HostOptions {
  std::string label;         ///< of a host; ranks with different labels never try to share
  std::string secret;        ///< the job's secret, asked for before any descriptor is passed
  size_t control_bytes = 0;  ///< of the control segment, which the lowest rank creates (sparse)
  size_t memory_bytes = 0;   ///< of this rank's own memory (sparse)
  uint64_t epoch = 0;
  int64_t deadline_ns = 0;
  Log log{0, LogLevel::kWarning, false};  ///< gets a line about unauthenticated peers
  Cancellation cancellation;
};

/// Filled by ShareHost (processes) or InprocHub (threads).
struct HostShare {
  int local_rank = 0;
  uint64_t epoch = 0;
  std::vector<int> ranks;                 ///< global rank of every local rank, ascending
  Segment control;                        ///< one for the host; zeroed at creation
  std::vector<Segment> memory;            ///< by local rank; memory[local_rank] is this rank's own
  std::vector<std::shared_ptr<Fd>> wake;  ///< by local rank: an eventfd that wakes its epoll sleep
  /// By local rank; null for ranks in this process. Readable once the rank's process is dead: a
  /// pidfd, or where the kernel gives none a pipe, whose other end only that process has.
  std::vector<std::shared_ptr<Fd>> pidfds;
  std::shared_ptr<Fd> life;  ///< this rank's end of such a pipe; a forked child closes it
  std::vector<std::shared_ptr<void>> keep_alive;  ///< other objects that must live as long
};

/// Finds the ranks with the same label through `bootstrap`, and passes memfds, eventfds and pidfds
/// over an abstract Unix socket of the lowest such rank, after the secret. Ranks share a host if
/// and only if this worked: no name is trusted. kConfig names a rank of this label that could not
/// be reached.
Result<HostShare> ShareHost(Bootstrap& bootstrap, const HostOptions& options);

}  // namespace horoacc
