#include "transport/net/rate_limited_listener.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kCost = 2 * kMillisecond;
constexpr int64_t kBurst = 256 * kCost;
/// A door that has closed opens for so many at once, not for each alone.
constexpr int64_t kRelief = 32 * kCost;
constexpr int64_t kShortage = 50 * kMillisecond;

bool OutOfDescriptors(int code) { return code == EMFILE || code == ENFILE; }

}  // namespace

Status Door::Open(Fd listener) {
  listener_ = std::move(listener);
  TakeSpare();
  return {};
}

void Door::TakeSpare() { spare_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

Door::Guest Door::Accept() {
  const auto accept = [this] {
    return Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  };
  for (;;) {
    Fd fd = accept();
    if (fd) return {std::move(fd), false};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    // Whoever waits at the door would wake this process again and again.
    if (OutOfDescriptors(errno) && spare_) {
      spare_ = Fd();
      fd = accept();
      const bool refused = static_cast<bool>(fd);
      const bool nobody = !refused && (errno == EAGAIN || errno == EWOULDBLOCK);
      fd = Fd();
      TakeSpare();
      if (refused || nobody) return {Fd(), refused};
    }
    rests_until_ns_ = std::max(rests_until_ns_, NowNs() + kShortage);
    if (!spare_) TakeSpare();
    return {Fd(), true};
  }
}

void Door::Charge(int64_t now_ns) {
  paid_until_ns_ = std::max(paid_until_ns_, now_ns) + kCost;
  if (paid_until_ns_ > now_ns + kBurst) rests_until_ns_ = paid_until_ns_ - kBurst + kRelief;
}

std::string NameOfPeer(const Fd& fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) !=
      0) {
    return "an unknown address";
  }
  return address.ToString();
}

}  // namespace horoacc
