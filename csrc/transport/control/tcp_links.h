#pragma once
// Control links over TCP: one connection between every pair of ranks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/control/control_links.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

struct TcpLinksOptions {
  std::string rendezvous;  ///< "host:port" of rank 0; a rank listens on the interface towards it
  std::string secret;      ///< the job's; not empty
  uint64_t epoch = 0;
  int64_t deadline_ns = 0;  ///< CLOCK_MONOTONIC, for connecting
  std::vector<int> peers;   ///< ranks to have a link to, the same on both ends; empty: all
  int64_t host_timeout_ns = 12'000'000'000;  ///< how long a host may be silent; 0: for ever
  int send_buffer = 0;  ///< bytes of the kernel's buffer of a link; 0: the system's choice
  Log log{0, LogLevel::kWarning, false};  ///< gets a line about unauthenticated peers
  Cancellation cancellation;              ///< while connecting
};

/// Connects to the peers: of two ranks the lower one dials, so that there is one connection a
/// pair. All ranks of the job call it. No port stays open afterwards. kTimeout names the ranks
/// that could not be reached.
///
/// Receive reports each lost peer once (kPeerLost), after everything that came from it, and goes
/// on with the others; Send to a lost peer is kPeerLost every time.
Result<std::unique_ptr<ControlLinks>> ConnectTcpLinks(Bootstrap& bootstrap,
                                                      const TcpLinksOptions& options);

}  // namespace horoacc
