#include "transport/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kLookPeriod = 100 * kMillisecond;

const sockaddr_in& V4(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}

const sockaddr_in6& V6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

void SetOption(int fd, int level, int name, int value) {
  // Unchecked: without an option a connection is slower or notices a loss later, but works.
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(V4(*this).sin_port);
  if (family() == AF_INET6) return ntohs(V6(*this).sin6_port);
  return 0;
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
}

bool SocketAddress::loopback() const {
  if (family() == AF_INET) return ntohl(V4(*this).sin_addr.s_addr) >> 24 == 127;
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&V6(*this).sin6_addr);
  return family() == AF_UNIX;
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  if ((family() != AF_INET && family() != AF_INET6) ||
      ::getnameinfo(get(), length, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "a local socket";
  }
  std::string text;
  if (family() == AF_INET6) {
    text.append(1, '[').append(host).append(1, ']');
  } else {
    text = host;
  }
  return text.append(1, ':').append(service);
}

namespace {

Result<std::vector<SocketAddress>> AddressesOf(const std::string& host_port, int flags) {
  const size_t colon = host_port.rfind(':');
  const std::string port = colon == std::string::npos ? "" : host_port.substr(colon + 1);
  // The resolver takes a number that is too large for another port.
  const bool digits = port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (port.empty() || colon == 0 || !digits || std::stoi(port) > 0xffff) {
    return MakeError(ErrorKind::kConfig, "'" + host_port + "' is not an address: host:port");
  }
  std::string host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failure != 0) {
    return MakeError(ErrorKind::kConfig,
                     "cannot resolve '" + host_port + "': " + ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace

Result<std::vector<SocketAddress>> ResolveAddress(const std::string& host_port) {
  return AddressesOf(host_port, 0);
}

Result<SocketAddress> NumericAddress(const std::string& host_port) {
  HA_ASSIGN(const std::vector<SocketAddress> only, AddressesOf(host_port, AI_NUMERICHOST));
  return only.front();
}

Result<SocketAddress> AbstractAddress(std::string_view name) {
  SocketAddress address;
  auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
  if (name.empty() || name.size() > sizeof(local.sun_path) - 1) {
    return MakeError(ErrorKind::kInvalid, "a name of an abstract socket has 1 to 107 characters");
  }
  local.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), local.sun_path + 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<SocketAddress> AddressTowards(const SocketAddress& peer) {
  const Fd probe(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return SystemError("socket");
  if (::connect(probe.get(), peer.get(), peer.length) != 0) {
    return SystemError("finding the way to " + peer.ToString());
  }
  HA_ASSIGN(SocketAddress local, LocalAddress(probe.get()));
  local.set_port(0);
  return local;
}

Result<SocketAddress> LocalAddress(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return SystemError("getsockname");
  }
  return address;
}

Result<Fd> Listen(const SocketAddress& address, int backlog, int* code) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("socket");
  // The port of a job that has just ended may be reused at once.
  if (address.family() != AF_UNIX) SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.get(), address.length) != 0) {
    if (code != nullptr) *code = errno;
    return SystemError("bind to " + address.ToString());
  }
  if (::listen(fd.get(), backlog) != 0) return SystemError("listen on " + address.ToString());
  return fd;
}

Result<Fd> StartDial(const SocketAddress& address, const SocketAddress* own) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("socket");
  TuneStream(fd.get());
  if (own != nullptr) {
    // connect chooses the port, because only the pair of addresses must be unique.
    SetOption(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    SocketAddress from = *own;
    from.set_port(0);
    if (::bind(fd.get(), from.get(), from.length) != 0) {
      return SystemError("bind to " + from.ToString());
    }
  }
  if (::connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return SystemError("connect to " + address.ToString());
  }
  return fd;
}

void TuneStream(int fd) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return;
  if (domain != AF_INET && domain != AF_INET6) return;
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  // A network that is down for some seconds does no harm; after 12 s the other host is lost.
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 12'000);
}

Status SetNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return SystemError("fcntl of a socket");
  }
  return {};
}

int PollTimeout(int64_t deadline_ns) {
  const int64_t now = NowNs();
  if (deadline_ns <= now) return 0;
  const int64_t ms = (deadline_ns - now) / kMillisecond + 1;
  return static_cast<int>(std::min<int64_t>(ms, INT_MAX));
}

Status WaitReady(int fd, short events, int64_t deadline_ns, const Cancellation& cancellation) {
  pollfd wait{fd, events, 0};
  while (true) {
    HA_TRY(PollUntil({&wait, 1}, deadline_ns, cancellation));
    if (wait.revents != 0) return {};
    if (NowNs() >= deadline_ns) return MakeError(ErrorKind::kTimeout, "the deadline passed");
  }
}

Status PollUntil(std::span<pollfd> waits, int64_t deadline_ns, const Cancellation& cancellation) {
  for (pollfd& wait : waits) wait.revents = 0;
  while (true) {
    const int64_t until =
        cancellation.Possible() ? std::min(deadline_ns, NowNs() + kLookPeriod) : deadline_ns;
    const int ready = ::poll(waits.data(), waits.size(), PollTimeout(until));
    const int code = errno;
    HA_TRY(cancellation.Check());
    if (ready > 0 || (ready < 0 && code == EINTR) || NowNs() >= deadline_ns) return {};
    if (ready < 0) {
      errno = code;
      return SystemError("poll");
    }
  }
}

}  // namespace horoacc
