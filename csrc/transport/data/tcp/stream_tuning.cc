#include "transport/data/tcp/stream_tuning.h"

// linux/tcp.h has all fields of tcp_info; netinet/tcp.h, which excludes it, has not.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "transport/net/fd.h"

namespace horoacc {
namespace {

constexpr uint64_t kLargest = 1 << 30;
constexpr int64_t kAloneInLimits = 3;
// Keeps a link of 100 Gbit/s busy for longer than a wake-up takes.
constexpr int kUnsent = 512 << 10;

void Set(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

struct Options {
  int size, beyond_the_limit;
  const char* limits;  ///< least, first and largest size that the kernel chooses
};
constexpr Options kOptions[] = {
    {SO_SNDBUF, SO_SNDBUFFORCE, "/proc/sys/net/ipv4/tcp_wmem"},
    {SO_RCVBUF, SO_RCVBUFFORCE, "/proc/sys/net/ipv4/tcp_rmem"},
};
const Options& OptionsOf(Direction direction) { return kOptions[static_cast<int>(direction)]; }

// The largest size that the kernel chooses; UINT64_MAX if unknown.
uint64_t LimitOf(Direction direction) {
  std::ifstream text(OptionsOf(direction).limits);
  uint64_t least = 0, first = 0, most = 0;
  text >> least >> first >> most;
  return text ? most : UINT64_MAX;
}

// The largest buffer of a process without CAP_NET_ADMIN.
uint64_t MostForAnybody(Direction direction) {
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Set(probe.get(), SOL_SOCKET, OptionsOf(direction).size, INT_MAX / 2);
  return BufferOf(probe.get(), direction);
}

bool SetBeyondLimit(int fd, Direction direction, int bytes) {
  const int option = OptionsOf(direction).beyond_the_limit;
  return ::setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof(bytes)) == 0;
}

int Clamped(uint64_t bytes) { return static_cast<int>(std::min<uint64_t>(bytes, INT_MAX / 2)); }

}  // namespace

StreamHealth HealthOf(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const uint64_t round_trip = info.tcpi_min_rtt == ~0U ? 0 : info.tcpi_min_rtt;
  // Bytes that this host cannot send although the peer has room count as well: its own queue may
  // drop them, and the kernel then does not count them as sent.
  const bool stuck = info.tcpi_notsent_bytes > 0 && info.tcpi_snd_wnd >= info.tcpi_snd_mss;
  StreamHealth health;
  health.rate = info.tcpi_delivery_rate;
  health.round_trip = round_trip;
  health.owes = info.tcpi_unacked > 0 || stuck;
  health.silence = info.tcpi_last_ack_recv;
  health.received = info.tcpi_rcv_space;
  health.acknowledged = info.tcpi_bytes_acked;
  health.data_packets = info.tcpi_data_segs_in;
  return health;
}

int64_t HostSilence::Look(const StreamHealth& health, int64_t now_ns) {
  const int64_t heard_ns = now_ns - static_cast<int64_t>(health.silence) * kMillisecond;
  const bool more = health.acknowledged != acknowledged_;
  const bool again = heard_ns > looked_ns_ && health.data_packets == data_packets_;
  if (!owes_ || more) {
    answered_ns_ = now_ns;
  } else if (again) {
    answered_ns_ = heard_ns;
  }
  owes_ = health.owes;
  acknowledged_ = health.acknowledged;
  data_packets_ = health.data_packets;
  looked_ns_ = now_ns;
  return owes_ ? now_ns - answered_ns_ : 0;
}

bool IsGone(std::span<const int64_t> silences_ns, int64_t limit_ns) {
  if (silences_ns.empty() || limit_ns == 0) return false;
  const auto [least, most] = std::ranges::minmax(silences_ns);
  return least >= limit_ns || most >= kAloneInLimits * limit_ns;
}

// The kernel probes an idle connection; the limit is six pauses.
void LimitSilence(int fd, int64_t limit_ns) {
  if (limit_ns == 0) return Set(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
  const auto pause = static_cast<int>(std::clamp<int64_t>(limit_ns / kSecond / 6, 1, 10'000));
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2 * pause);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, pause);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

void LimitUnanswered(int fd, int64_t limit_ns) {
  const int64_t ms = std::min<int64_t>(limit_ns / kMillisecond, INT_MAX);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(ms));
}

std::string SilenceText(int64_t silent_ns, int64_t limit_ns) {
  std::ostringstream text;
  text << "its host has acknowledged nothing for " << silent_ns / kSecond
       << " s (host_timeout_seconds: " << static_cast<double>(limit_ns) / kSecond << ")";
  return text.str();
}

uint64_t BufferOf(int fd, Direction direction) {
  int granted = 0;
  socklen_t length = sizeof(granted);
  ::getsockopt(fd, SOL_SOCKET, OptionsOf(direction).size, &granted, &length);
  // The kernel doubles the size that was asked for, for its own bookkeeping.
  return static_cast<uint64_t>(granted) / 2;
}

uint64_t WantedBuffer(uint64_t under_way, uint64_t current) {
  return std::max(current, std::min(2 * under_way, kLargest));
}

void AdaptBuffer(int fd, Direction direction, uint64_t under_way) {
  static const uint64_t limits[] = {LimitOf(Direction::kSend), LimitOf(Direction::kReceive)};
  const uint64_t current = BufferOf(fd, direction);
  if (2 * current < limits[static_cast<int>(direction)]) return;
  const uint64_t wanted = WantedBuffer(under_way, current);
  if (wanted <= current + current / 4 || SetBeyondLimit(fd, direction, Clamped(wanted))) return;
  const uint64_t possible = std::min(wanted, MostForAnybody(direction));
  if (possible > current) Set(fd, SOL_SOCKET, OptionsOf(direction).size, Clamped(possible));
}

void PrepareStream(int fd, uint64_t fixed_buffer) {
  LimitUnanswered(fd, 0);
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsent);
  if (fixed_buffer == 0) return;
  for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
    if (SetBeyondLimit(fd, direction, Clamped(fixed_buffer))) continue;
    Set(fd, SOL_SOCKET, OptionsOf(direction).size, Clamped(fixed_buffer));
  }
}

}  // namespace horoacc
