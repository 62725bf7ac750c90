#pragma once
// Control links over TCP: one connection between two ranks that have sent each other a message.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "transport/control/control_links.h"
#include "transport/net/fd.h"
#include "transport/net/sealing.h"
#include "transport/net/socket.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

struct TcpLinksOptions {
  int rank = 0;
  int size = 1;
  std::string secret;  ///< the job's; not empty
  uint64_t epoch = 0;
  Sealing sealing{};        ///< of all messages
  int64_t deadline_ns = 0;  ///< CLOCK_MONOTONIC, for the links that are made at once
  std::vector<int> dials;   ///< ranks that this one connects to at once
  std::vector<int> awaits;  ///< ranks that connect to this one at once
  /// Where a rank listens; nothing as long as it is not known.
  std::function<std::optional<SocketAddress>(int)> address_of;
  /// Whether a rank has shut down in good order: it is not dialed any more. Empty: none has.
  std::function<bool(int)> has_left{};
  int64_t host_timeout_ns = 12'000'000'000;  ///< how long a host may be silent; 0: for ever
  int64_t timeout_ns = 30'000'000'000;       ///< how long a peer may be out of reach when dialed
  int send_buffer = 0;  ///< bytes of the kernel's buffer of a link; 0: the system's choice
  Log log{0, LogLevel::kWarning, false};  ///< gets a line about unauthenticated peers
  Cancellation cancellation;              ///< while connecting at once
};

/// A port for the links of one rank of `size`, on the interface towards `rendezvous` ("host:port").
Result<Fd> ListenForControl(const std::string& rendezvous, int size);

/// Waits for the links of `dials` and `awaits`; kTimeout names the ranks that could not be reached.
/// Any other link is made when a rank first sends over it, and the port stays open for that. If two
/// ranks dial each other, each sends on the connection that it had first: so messages of one rank
/// keep their order.
///
/// Receive reports each lost peer once (kPeerLost), after everything that came from it, and goes
/// on with the others; Send to a lost peer does nothing.
Result<std::unique_ptr<ControlLinks>> ConnectTcpLinks(Fd listener, const TcpLinksOptions& options);

}  // namespace horoacc
