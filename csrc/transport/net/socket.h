#pragma once
// Sockets as this project uses them: non-blocking, closed on exec, no SIGPIPE, every wait with a
// deadline (CLOCK_MONOTONIC).
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/net/fd.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] uint16_t port() const;
  void set_port(uint16_t port);
  [[nodiscard]] bool loopback() const;
  /// "127.0.0.1:80" or "[::1]:80".
  [[nodiscard]] std::string ToString() const;
};

/// Resolves "host:port" or "[v6 address]:port". Asks the system's resolver only if the host is
/// not numeric.
Result<std::vector<SocketAddress>> ResolveAddress(const std::string& host_port);
/// The same of what a peer says, whose names this host does not look up.
Result<SocketAddress> NumericAddress(const std::string& host_port);

/// An address in Linux's abstract namespace: it has no file, and ends with its last socket.
Result<SocketAddress> AbstractAddress(std::string_view name);

/// The local address that packets to `peer` leave from, with port 0. Sends nothing.
Result<SocketAddress> AddressTowards(const SocketAddress& peer);

Result<SocketAddress> LocalAddress(int fd);

/// Binds and listens. For TCP, port 0 lets the system choose (see LocalAddress). `code` (if given)
/// receives the errno of a failed bind.
Result<Fd> Listen(const SocketAddress& address, int backlog, int* code = nullptr);

/// Starts to connect, from the address `own` (any port) if it is given. The connection is usable,
/// or has failed, once it is writable.
Result<Fd> StartDial(const SocketAddress& address, const SocketAddress* own = nullptr);

/// Sets the options of a job's TCP connection: no delay, and an unreachable host is noticed within
/// 15 s even if nothing is sent. Does nothing for other sockets.
void TuneStream(int fd);

Status SetNonBlocking(int fd);

/// kTimeout at the deadline. Errors and hang-ups count as ready: the next call reports them.
Status WaitReady(int fd, short events, int64_t deadline_ns, const Cancellation& cancellation = {});

/// poll() until something is ready, a signal has come or the deadline has passed; the caller looks
/// which. Fails only if the caller is cancelled, or as poll() does.
Status PollUntil(std::span<pollfd> waits, int64_t deadline_ns,
                 const Cancellation& cancellation = {});

/// Time to the deadline in poll()'s unit, at least 0, rounded up.
[[nodiscard]] int PollTimeout(int64_t deadline_ns);

/// Whether errno says that the call would have blocked.
[[nodiscard]] inline bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace horoacc
