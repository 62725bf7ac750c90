#pragma once
// Connecting the ranks of a job pairwise over TCP.
#include <vector>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/control/tcp_links.h"
#include "transport/net/fd.h"

namespace horoacc {

/// One proved connection to each wanted peer, by rank; the others stay empty. See ConnectTcpLinks.
Result<std::vector<Fd>> ConnectMesh(Bootstrap& bootstrap, const TcpLinksOptions& options);

}  // namespace horoacc
