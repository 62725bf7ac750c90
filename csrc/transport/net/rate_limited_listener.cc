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
/// After a pause so many peers may connect, so that it does not pause again at once.
constexpr int64_t kRelief = 32 * kCost;
constexpr int64_t kShortage = 50 * kMillisecond;

bool OutOfDescriptors(int code) { return code == EMFILE || code == ENFILE; }

}  // namespace

void RateLimitedListener::Open(Fd listener) {
  listener_ = std::move(listener);
  TakeSpare();
}

void RateLimitedListener::TakeSpare() { spare_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

RateLimitedListener::PendingConnection RateLimitedListener::Accept() {
  const auto accept = [this] {
    return Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  };
  for (;;) {
    Fd fd = accept();
    if (fd) return {std::move(fd), false};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (WouldBlock()) return {};
    // A connection that stays in the queue would wake this process again and again.
    if (OutOfDescriptors(errno) && spare_) {
      spare_ = Fd();
      fd = accept();
      const bool refused = static_cast<bool>(fd);
      const bool none = !refused && WouldBlock();
      fd = Fd();
      TakeSpare();
      if (refused || none) return {Fd(), refused};
    }
    paused_until_ns_ = std::max(paused_until_ns_, NowNs() + kShortage);
    if (!spare_) TakeSpare();
    return {Fd(), true};
  }
}

void RateLimitedListener::Charge(int64_t now_ns) {
  paid_until_ns_ = std::max(paid_until_ns_, now_ns) + kCost;
  if (paid_until_ns_ > now_ns + kBurst) paused_until_ns_ = paid_until_ns_ - kBurst + kRelief;
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
