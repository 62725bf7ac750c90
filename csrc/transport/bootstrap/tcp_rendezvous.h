#pragma once
// The bootstrap of a job without MPI: all ranks connect to rank 0 at a known address.
#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

struct TcpOptions {
  int rank = 0;
  int size = 1;
  std::string address;  ///< "host:port"; rank 0 listens there
  int listen_fd = -1;   ///< rank 0: a listening socket to take over instead of binding
  std::string secret;   ///< the job's; not empty
  uint64_t epoch = 0;
  int64_t deadline_ns = 0;                ///< CLOCK_MONOTONIC, for the whole call
  Log log{0, LogLevel::kWarning, false};  ///< gets a line about unauthenticated peers
  Cancellation cancellation;              ///< of this call, and of those of the bootstrap
};

/// Returns once all ranks of the job are connected. Unauthenticated peers (another secret, garbage,
/// silence, a rank that is taken or does not exist) are dropped. kTimeout names the missing ranks,
/// on all ranks that connected; kConfig is rank 0's reason to refuse this rank.
Result<std::unique_ptr<Bootstrap>> ConnectTcp(const TcpOptions& options);

}  // namespace horoacc
