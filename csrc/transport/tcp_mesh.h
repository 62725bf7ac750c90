#pragma once
// Connecting the ranks of a job pairwise over TCP.
#include <vector>

#include "base/result.h"
#include "transport/bootstrap.h"
#include "transport/fd.h"
#include "transport/tcp_links.h"

namespace horoacc {

/// One proved connection to each wanted peer, by rank; the others stay empty. See ConnectTcpLinks.
Result<std::vector<Fd>> ConnectMesh(Bootstrap& bootstrap, const TcpLinksOptions& options);

}  // namespace horoacc
