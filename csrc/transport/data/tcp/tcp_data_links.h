#pragma once
// Data links over TCP: a message is striped over several connections and assembled in the
// receiver's buffer.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "transport/data/data_links.h"
#include "transport/data/tcp/tcp_stream.h"
#include "transport/net/socket.h"

namespace horoacc {

struct TcpDataOptions {
  std::string secret;  ///< the job's; not empty
  uint64_t epoch = 0;
  Sealing sealing{};  ///< of all frames; they need no checksums then
  int rank = 0;
  std::string address;       ///< where to listen, without port (interfaces.h)
  std::vector<int> host_of;  ///< by rank; equal for ranks that reach each other without a network
  /// Where a rank listens; nothing as long as it is not known.
  std::function<std::optional<SocketAddress>(int)> address_of;
  int streams = 0;             ///< connections to a peer; 0: one, and more once it is full
  uint64_t socket_buffer = 0;  ///< bytes; 0: follows the bandwidth-delay product
  bool checksums = false;      ///< of the payload, too; headers always have one
  int64_t host_timeout_ns = 12'000'000'000;  ///< how long a host may be silent; 0: for ever
  int64_t timeout_ns = 30'000'000'000;       ///< how long a peer may be out of reach when dialed
  Log log{0, LogLevel::kWarning, false};     ///< gets a line about unauthenticated peers
  std::shared_ptr<SocketCounters> counters = std::make_shared<SocketCounters>();
};

class TcpDataLinks : public DataLinks {
 public:
  /// The bytes and system calls of a peer's connections so far.
  [[nodiscard]] virtual TcpTraffic traffic(int peer) const = 0;
  /// How many connections to a peer there are.
  [[nodiscard]] virtual int streams(int peer) const = 0;
  /// Where this rank listens.
  [[nodiscard]] virtual SocketAddress address() const = 0;
};

/// The rank listens for as long as the links live; two ranks connect with the first link between
/// them: the lower rank dials, and the sender of a standing link, of which its peer may not know.
/// Unauthenticated peers are refused before anything else is read from them (handshake.h).
///
/// Besides the contract: a message that comes before it is expected gets memory of its own, so that
/// no later message waits; call Progress, which sends, after Post and Release and before sleeping
/// on WaitFd. A rank whose links were destroyed in order is lost only for ranks with open links to
/// it.
Result<std::unique_ptr<TcpDataLinks>> ListenForData(TcpDataOptions options);

}  // namespace horoacc
