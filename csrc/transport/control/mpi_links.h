#pragma once
// MPI as a bootstrap and as control links.
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/control/control_links.h"
#include "transport/mpi/mpi_session.h"

namespace horoacc {

[[nodiscard]] std::unique_ptr<Bootstrap> MakeMpiBootstrap(std::shared_ptr<MpiSession> session);

/// Its WaitFd is -1: MPI wakes nobody. MPI itself does not tell of a peer's death either; that is
/// the business of whoever holds its pidfd or a socket to it.
[[nodiscard]] std::unique_ptr<ControlLinks> MakeMpiControlLinks(
    std::shared_ptr<MpiSession> session);

}  // namespace horoacc
