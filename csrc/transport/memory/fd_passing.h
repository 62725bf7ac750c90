#pragma once
// Descriptors over a Unix socket (SCM_RIGHTS).
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/net/fd.h"

namespace horoacc {

/// Sends a number and at most kMostFds descriptors, which stay open here too.
Status SendFds(int socket, uint32_t number, std::span<const int> fds, int64_t deadline_ns);

struct PassedFds {
  uint32_t number = 0;
  std::vector<Fd> fds;
};
/// Receives one such message. kPeerLost if the other end closed.
Result<PassedFds> ReceiveFds(int socket, int64_t deadline_ns);

inline constexpr size_t kMostFds = 8;

}  // namespace horoacc
