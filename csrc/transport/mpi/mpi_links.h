#pragma once
// MPI as a bootstrap, as control links and as data links.
#include <cstdint>
#include <memory>

#include "transport/bootstrap/bootstrap.h"
#include "transport/control/control_links.h"
#include "transport/data/data_links.h"
#include "transport/mpi/mpi_session.h"

namespace horoacc {

[[nodiscard]] std::unique_ptr<Bootstrap> MakeMpiBootstrap(std::shared_ptr<MpiSession> session);

/// Its WaitFd is -1, because MPI wakes no thread. MPI does not report a peer's death either: the
/// engine sees it at the peer's pidfd or socket.
[[nodiscard]] std::unique_ptr<ControlLinks> MakeMpiControlLinks(
    std::shared_ptr<MpiSession> session);

/// After an abort the session must be abandoned.
[[nodiscard]] std::unique_ptr<DataLinks> MakeMpiDataLinks(std::shared_ptr<MpiSession> session,
                                                          uint64_t epoch);

}  // namespace horoacc
