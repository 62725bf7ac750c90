#pragma once
// Data links over TCP: a message is scattered over several connections to its receiver, which put
// it together where it is wanted.
#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/data/data_links.h"
#include "transport/data/tcp/tcp_stream.h"

namespace horoacc {

struct TcpDataOptions {
  std::string secret;  ///< the job's; not empty
  uint64_t epoch = 0;
  int64_t deadline_ns = 0;  ///< CLOCK_MONOTONIC, for telling each other the addresses
  std::string host;         ///< equal for ranks on one host; empty: NetworkIdentity()
  int local_rank = 0;
  std::string interfaces;      ///< names separated by commas; empty: chosen (interfaces.h)
  int streams = 0;             ///< connections to a peer; 0: one, and more once it is full
  uint64_t socket_buffer = 0;  ///< bytes; 0: follows the bandwidth-delay product
  bool checksums = false;      ///< of the payload, too; headers always have one
  int64_t host_timeout_ns = 12'000'000'000;  ///< how long a host may be silent; 0: for ever
  int64_t timeout_ns = 30'000'000'000;       ///< how long a peer may be out of reach when dialed
  Log log{0, LogLevel::kWarning, false};     ///< where unauthenticated peers are told of
  std::shared_ptr<SocketCounters> counters = std::make_shared<SocketCounters>();
};

class TcpDataLinks : public DataLinks {
 public:
  /// What went over the connections to a peer so far.
  [[nodiscard]] virtual TcpTraffic traffic(int peer) const = 0;
  /// How many connections to a peer there are.
  [[nodiscard]] virtual int streams(int peer) const = 0;
  /// Where this rank listens: "10.0.0.1:4711".
  [[nodiscard]] virtual std::string address() const = 0;
};

/// All ranks call it. Each listens on its interface for as long as the links live; connections
/// come into being with the first link between two ranks. Unauthenticated peers are turned away
/// before anything else is read from them (handshake.h).
///
/// Besides what the contract says: a message that comes before it is expected is kept in memory of
/// its own, so that nothing behind it has to wait; Progress is to be called after Post and Release
/// and before sleeping on WaitFd, for it is what sends. A rank whose links were destroyed in order
/// is missed only by whoever still has a link to it.
Result<std::unique_ptr<TcpDataLinks>> ListenForData(Bootstrap& bootstrap,
                                                    const TcpDataOptions& options);

}  // namespace horoacc
