#include "transport/stream_tuning.h"

// linux/tcp.h has all fields of tcp_info; netinet/tcp.h, which cannot be included beside it, not.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>

namespace horoacc {
namespace {

constexpr uint64_t kLargest = 1 << 30;
// A backlog of this much keeps a link of 100 Gbit/s busy for longer than a wake-up takes.
constexpr int kUnsent = 512 << 10;

void Set(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

StreamHealth HealthOf(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const uint64_t round_trip = info.tcpi_min_rtt == ~0U ? 0 : info.tcpi_min_rtt;
  return {info.tcpi_delivery_rate, round_trip, info.tcpi_unacked, info.tcpi_last_ack_recv};
}

uint64_t WantedBuffer(const StreamHealth& health, uint64_t current) {
  const uint64_t under_way = health.rate * health.round_trip / 1'000'000;
  return std::max(current, std::min(2 * under_way, kLargest));
}

uint64_t SendBufferOf(int fd) {
  int granted = 0;
  socklen_t length = sizeof(granted);
  ::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &length);
  // The kernel doubles what is asked for, to have room for its own bookkeeping.
  return static_cast<uint64_t>(granted) / 2;
}

uint64_t SetSendBuffer(int fd, uint64_t bytes) {
  const int wanted = static_cast<int>(std::min<uint64_t>(bytes, INT_MAX / 2));
  // Beyond the system's limit only with CAP_NET_ADMIN.
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof(wanted)) != 0) {
    Set(fd, SOL_SOCKET, SO_SNDBUF, wanted);
  }
  return SendBufferOf(fd);
}

void PrepareStream(int fd, uint64_t fixed_buffer) {
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsent);
  if (fixed_buffer == 0) return;
  SetSendBuffer(fd, fixed_buffer);
  const int wanted = static_cast<int>(std::min<uint64_t>(fixed_buffer, INT_MAX / 2));
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof(wanted)) != 0) {
    Set(fd, SOL_SOCKET, SO_RCVBUF, wanted);
  }
}

}  // namespace horoacc
