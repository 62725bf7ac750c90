// A port under attack by unauthenticated peers: its descriptors and time stay bounded, and it does
// not keep its process awake.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "support/check.h"
#include "transport/net/admission.h"
#include "transport/net/socket.h"

using namespace horoacc;

namespace {

constexpr size_t kCapacity = 8;

struct Port {
  explicit Port(int64_t timeout_ns = 60 * kSecond)
      : admission({"secret", LinkPurpose::kData, 7, 1, 2}, kCapacity, timeout_ns,
                  Log(1, LogLevel::kFatal, true)) {
    Fd listener = Listen(ResolveAddress("127.0.0.1:0").value().front(), 1024).value();
    address = LocalAddress(listener.get()).value();
    CHECK(admission.MakeWaitable().ok());
    CHECK(admission.Listen(std::move(listener)).ok());
  }
  [[nodiscard]] Fd Visit() const {
    Fd link = StartDial(address).value();
    CHECK(WaitReady(link.get(), POLLOUT, NowNs() + 30 * kSecond).ok());
    return link;
  }
  [[nodiscard]] bool Calls() const {
    pollfd wait{admission.WaitFd(), POLLIN, 0};
    return ::poll(&wait, 1, 0) > 0;
  }
  void StepOnce() { CHECK(admission.Step(0).value().admitted.empty()); }
  Admission admission;
  SocketAddress address;
};

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

/// A rank that knows the secret gets in.
void CheckRankGetsIn(Port& port) {
  Admission rank({"secret", LinkPurpose::kData, 7, 0, 2}, 0, 60 * kSecond,
                 Log(0, LogLevel::kFatal, true));
  const int64_t deadline = NowNs() + 60 * kSecond;
  bool in = false;
  bool dialing = false;
  while (!in && NowNs() < deadline) {
    if (!dialing) CHECK(rank.Dial(StartDial(port.address).value(), 0).ok());
    dialing = true;
    in = !port.admission.Step(NowNs() + kMillisecond).value().admitted.empty();
    // If it was dropped among unauthenticated peers, it dials again.
    dialing = rank.Step(NowNs() + kMillisecond).value().failed.empty();
  }
  CHECK(in);
}

}  // namespace

TEST(IdleUnauthenticatedPeersAreBounded) {
  Port port;
  const int before = OpenDescriptors();
  std::vector<Fd> crowd;
  for (int count = 0; count < 100; ++count) {
    crowd.push_back(port.Visit());
    port.StepOnce();
    CHECK(OpenDescriptors() - before - static_cast<int>(crowd.size()) <=
          static_cast<int>(kCapacity));
  }
  CHECK(port.admission.TurnedAway().find("too many connections at once") != std::string::npos);
  CheckRankGetsIn(port);
}

TEST(TheTokenBucketAllowsABurstAndARate) {
  RateLimitedListener listener;
  int64_t now = 1000 * kSecond;
  for (int count = 0; count < 256; ++count) {
    CHECK(listener.paused_until_ns() <= now);
    listener.Charge(now);
  }
  listener.Charge(now);
  CHECK(listener.paused_until_ns() > now);
  CHECK(listener.paused_until_ns() < now + kSecond);
  // 500 a second never pause it.
  now = listener.paused_until_ns();
  for (int count = 0; count < 5000; ++count, now += kSecond / 500) {
    listener.Charge(now);
    CHECK(listener.paused_until_ns() <= now);
  }
}

TEST(APausedListenerWakesNoThread) {
  Port port;
  bool paused = false;
  // A slow machine accepts them one by one, but hardly in every round.
  for (int round = 0; round < 50 && !paused; ++round) {
    std::vector<Fd> crowd;
    for (int count = 0; count < 600; ++count) crowd.push_back(port.Visit());
    while (port.Calls()) port.StepOnce();
    pollfd waits{crowd.back().get(), POLLIN, 0};
    // The last one was neither dropped nor accepted, and still WaitFd is not readable.
    paused = port.admission.due_ns() < NowNs() + kSecond && ::poll(&waits, 1, 0) == 0;
  }
  CHECK(paused);
  CheckRankGetsIn(port);
}

TEST(ASlowPeerIsDroppedInTime) {
  Port port(kSecond / 5);
  const Fd slow = port.Visit();
  const int64_t deadline = NowNs() + 60 * kSecond;
  char byte = 0;
  ssize_t got = -1;
  while (got != 0 && NowNs() < deadline) {
    (void)::send(slow.get(), "H", 1, MSG_NOSIGNAL);
    port.StepOnce();
    ::poll(nullptr, 0, 5);
    got = ::recv(slow.get(), &byte, 1, MSG_DONTWAIT);
    if (got < 0 && errno == ECONNRESET) got = 0;
  }
  CHECK_EQ(got, 0);
  CHECK(port.admission.TurnedAway().find("took too long") != std::string::npos ||
        port.admission.TurnedAway().find("does not speak") != std::string::npos);
}

TEST(WithoutDescriptorsWaitingPeersAreDropped) {
  Port port;
  const Fd first = port.Visit();
  const Fd second = port.Visit();
  rlimit before{};
  CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<Fd> hoard;
  for (;;) {
    Fd more(::dup(0));
    if (!more) break;
    hoard.push_back(std::move(more));
    if (hoard.size() == 64) {
      rlimit none = before;
      none.rlim_cur = static_cast<rlim_t>(hoard.back().get()) + 1;
      CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    }
  }
  CHECK(port.Calls());
  port.StepOnce();
  port.StepOnce();
  // No connection waits any more, and none was accepted.
  CHECK(!port.Calls());
  CHECK(port.admission.TurnedAway().find("no file descriptors left") != std::string::npos);
  char byte = 0;
  CHECK(::recv(first.get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET);
  CHECK(::recv(second.get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET);
  CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  hoard.clear();
  CheckRankGetsIn(port);
}
