#pragma once
// The two ends of the TCP bootstrap, once rank 0 has a listener and the others a connection.
#include <memory>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/tcp_rendezvous.h"
#include "transport/net/fd.h"

namespace horoacc {

/// Rank 0's end: admits all other ranks at `listener`, which is closed afterwards.
Result<std::unique_ptr<Bootstrap>> GatherRanks(const TcpOptions& options, Fd listener);

/// The others' end: waits on `root`, a proved connection to rank 0, until all ranks are there.
Result<std::unique_ptr<Bootstrap>> JoinRanks(const TcpOptions& options, Fd root);

}  // namespace horoacc
