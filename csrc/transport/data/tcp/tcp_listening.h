#pragma once
// Where the ranks of a job listen for data links over TCP.
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/data/tcp/tcp_data_links.h"
#include "transport/net/socket.h"

namespace horoacc {

struct TcpPlace {
  SocketAddress address;
  std::string host;  ///< equal for ranks on one host
};

struct ListeningRanks {
  Fd listener;                   ///< this rank's
  std::vector<TcpPlace> places;  ///< by rank
};

/// All ranks call it: each listens on its interface, and all learn where all others do. kConfig
/// names a rank that cannot, on all of them.
[[nodiscard]] Result<ListeningRanks> ListenOnChosen(Bootstrap& bootstrap,
                                                    const TcpDataOptions& options);

}  // namespace horoacc
