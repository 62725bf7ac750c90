// Data links over TCP when something goes wrong: unauthenticated peers, deaths, stops, aborts,
// stale frames.
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>

#include "support/data_ranks.h"
#include "support/forked_ranks.h"
#include "transport/bootstrap/tcp_rendezvous.h"

using namespace horoacc;
using namespace horoacc::testing;

namespace {

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The links of a rank that is a process; the rendezvous is at `port`.
std::unique_ptr<TcpDataLinks> ListenForked(FreePort& port, int rank, int size, int streams) {
  TcpOptions options;
  options.rank = rank;
  options.size = size;
  options.address = port.address;
  options.listen_fd = rank == 0 ? ::dup(port.listener.get()) : -1;
  options.secret = "the job's secret";
  options.deadline_ns = NowNs() + 60 * kSecond;
  const auto bootstrap = ConnectTcp(options);
  CHECK(bootstrap.ok());
  auto links = ListenOnAll(*bootstrap.value(), DataOptions(streams));
  CHECK(links.ok());
  return std::move(links).value();
}

/// Both ends in the hands of this thread; connected, with a message there and back.
void Warm(TcpDataLinks& lower, TcpDataLinks& higher) {
  const auto sender = MustSend(lower, Spec(1, 1000));
  const auto receiver = MustReceive(higher, Spec(0, 1000));
  const auto bytes = Pattern(100, 1);
  CHECK(receiver->Expect(100, {}).ok());
  CHECK(PostAll(*sender, bytes).ok());
  bool released = false;
  CHECK(!Drive(higher, [&] {
    CHECK(lower.Progress().ok());
    if (!released && Look(*receiver) != nullptr) {
      receiver->Release();
      released = true;
    }
    return sender->taken() == 1;
  }));
}

}  // namespace

TEST(AnotherSecretGetsNoLink) {
  const auto links = ListenAll(2, 2, [](int rank, TcpDataOptions& options) {
    if (rank == 1) options.secret = "guessed";
    options.timeout_ns = 300 * kMillisecond;
  });
  const auto sender = MustSend(*links[0], Spec(1, 1));
  const auto bytes = Pattern(10, 1);
  CHECK(PostAll(*sender, bytes).ok());
  std::atomic<bool> over = false;
  InThreads(2, [&](int rank) {
    if (rank == 1) {
      CHECK(!Drive(*links[1], [&] { return over.load(); }));
      CHECK_EQ(links[1]->streams(0), 0);
      CHECK_EQ(links[1]->traffic(0).bytes_received, 0);
      return;
    }
    const auto error = Drive(*links[0], [] { return false; });
    over = true;
    CHECK(error && error->kind == ErrorKind::kPeerLost);
    CHECK_EQ(error->culprit, 1);
    CHECK(Has(error->message, "rank 1") && Has(error->message, "secret"));
    // It comes again, and from every call.
    CHECK(links[0]->Progress().error().message == error->message);
    CHECK(links[0]->OpenSend(Spec(1, 2)).error().message == error->message);
    CHECK(!PostAll(*sender, bytes).ok() && !sender->Slot().ok());
  });
}

TEST(AnotherEpochGetsNoLink) {
  const auto links = ListenAll(2, 1, [](int rank, TcpDataOptions& options) {
    if (rank == 1) options.epoch = 4;
    options.timeout_ns = 300 * kMillisecond;
  });
  const auto sender = MustSend(*links[0], Spec(1, 1));
  std::optional<Error> error;
  CHECK(!Drive(*links[1], [&] {
    const auto moved = links[0]->Progress();
    if (!moved.ok()) error = moved.error();
    return error.has_value();
  }));
  CHECK_EQ(error->culprit, 1);
  CHECK_EQ(links[1]->streams(0), 0);
}

TEST(APeerThatIsStoppedIsDialedUntilItGoesOn) {
  // Its port is open, and the kernel takes connections, but nobody looks after them.
  constexpr int64_t kTimeout = 300 * kMillisecond;
  const auto links =
      ListenAll(2, 2, [](int, TcpDataOptions& options) { options.timeout_ns = kTimeout; });
  const auto sender = MustSend(*links[0], Spec(1, 1));
  const int64_t stopped_until = NowNs() + 4 * kTimeout;
  CHECK(!Drive(*links[0], [&] { return NowNs() > stopped_until; }));
  CHECK_EQ(links[0]->streams(1), 0);
  CHECK(!Drive(*links[0], [&] {
    CHECK(links[1]->Progress().ok());
    return links[0]->streams(1) > 0 && links[1]->streams(0) > 0;
  }));
}

TEST(MoreConnectionsThatDoNotComeAreDoneWithout) {
  // One connection is there, full, and its peer is stopped: those that it would be relieved by are
  // given up, and the message comes over the first.
  constexpr int64_t kTimeout = 300 * kMillisecond;
  const auto links = ListenAll(
      2, 0,
      [](int, TcpDataOptions& options) {
        options.socket_buffer = 64 << 10;
        options.timeout_ns = kTimeout;
      },
      true);
  Warm(*links[0], *links[1]);
  const auto sender = MustSend(*links[0], Spec(1, 2));
  const auto receiver = MustReceive(*links[1], Spec(0, 2));
  const auto bytes = Pattern(24 << 20, 2);
  CHECK(receiver->Expect(bytes.size(), {}).ok());
  CHECK(PostAll(*sender, bytes).ok());
  const int64_t stopped_until = NowNs() + 4 * kTimeout;
  CHECK(!Drive(*links[0], [&] { return NowNs() > stopped_until; }));
  CHECK_EQ(links[0]->streams(1), 1);
  CHECK(!Drive(*links[0], [&] {
    CHECK(links[1]->Progress().ok());
    return Look(*receiver) != nullptr;
  }));
  CHECK(Gather(*Look(*receiver)) == bytes);
}

TEST(APeerWithoutAPortIsNamedInTime) {
  auto links = ListenAll(
      2, 2, [](int, TcpDataOptions& options) { options.timeout_ns = 300 * kMillisecond; });
  links[1].reset();
  const auto sender = MustSend(*links[0], Spec(1, 1));
  const auto error = Drive(*links[0], [] { return false; });
  CHECK(error && error->kind == ErrorKind::kPeerLost);
  CHECK_EQ(error->culprit, 1);
  CHECK(Has(error->message, "rank 1 cannot be reached at "));
}

TEST(UnauthenticatedPeersAreRefusedAndHarmless) {
  const auto links = ListenAll(2, 2);
  const SocketAddress address = links[1]->address();
  std::vector<Fd> peers;
  for (int count = 0; count < 20; ++count) {
    peers.push_back(std::move(StartDial(address)).value());
    CHECK(WaitReady(peers.back().get(), POLLOUT, NowNs() + 10 * kSecond).ok());
    const std::string noise(100, static_cast<char>(count));
    CHECK_EQ(::send(peers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL), 100);
  }
  Warm(*links[0], *links[1]);
  CHECK_EQ(links[1]->streams(0), 2);
}

TEST(APeerThatDiesInTheMiddleOfAMessageIsNamed) {
  for (const int streams : {1, 4}) {
    FreePort port;
    constexpr size_t kBig = 200 << 20;
    ForkedRank victim([&] {
      const auto links = ListenForked(port, 1, 2, streams);
      const auto sender = MustSend(*links, Spec(0, 1, 0, 1, kBig));
      const auto bytes = Pattern(kBig, 1);
      CHECK(PostAll(*sender, bytes).ok());
      [[maybe_unused]] const auto error = Drive(*links, [] { return false; });
      return 0;
    });
    const auto links = ListenForked(port, 0, 2, streams);
    const auto receiver = MustReceive(*links, Spec(1, 1, 0, 1, kBig));
    std::vector<std::byte> where(kBig);
    const std::span<std::byte> piece(where);
    CHECK(receiver->Expect(kBig, {&piece, 1}).ok());
    CHECK(!Drive(*links, [&] { return links->traffic(1).bytes_received > (2 << 20); }));
    victim.Kill();
    const auto error = Drive(*links, [] { return false; });
    CHECK(error && error->kind == ErrorKind::kPeerLost);
    CHECK_EQ(error->culprit, 1);
    CHECK(Has(error->message, "rank 1"));
    CHECK(!receiver->Arrived().ok());
  }
}

TEST(AStoppedPeerHoldsUpNobodyElseAndGoesOnWhenItWakes) {
  FreePort port;
  constexpr size_t kBig = 40 << 20;
  ForkedRank stopped([&] {
    const auto links = ListenForked(port, 2, 3, 2);
    const auto receiver = MustReceive(*links, Spec(0, 1, 0, 1, kBig));
    CHECK(receiver->Expect(kBig, {}).ok());
    CHECK(!Drive(*links, [&] { return links->traffic(0).bytes_received > 0; }));
    ::raise(SIGSTOP);
    CHECK(!Drive(*links, [&] { return Look(*receiver) != nullptr; }));
    CHECK(Gather(*Look(*receiver)) == Pattern(kBig, 3));
    receiver->Release();
    CHECK(!Drive(*links, [&] { return !links->HasUnsent(); }));
    return 0;
  });
  ForkedRank lively([&] {
    const auto links = ListenForked(port, 1, 3, 2);
    const auto receiver = MustReceive(*links, Spec(0, 1));
    for (uint64_t number = 0; number < 50; ++number) {
      CHECK(receiver->Expect(200000, {}).ok());
      CHECK(!Drive(*links, [&] { return Look(*receiver) != nullptr; }));
      CHECK(Gather(*Look(*receiver)) == Pattern(200000, number));
      receiver->Release();
    }
    CHECK(!Drive(*links, [&] { return !links->HasUnsent(); }));
    return 0;
  });
  const auto links = ListenForked(port, 0, 3, 2);
  const auto to_stopped = MustSend(*links, Spec(2, 1, 0, 1, kBig));
  const auto big = Pattern(kBig, 3);
  CHECK(PostAll(*to_stopped, big).ok());
  CHECK(!Drive(*links, [&] { return stopped.Stopped(); }));
  const auto to_lively = MustSend(*links, Spec(1, 1));
  std::vector<std::vector<std::byte>> kept;
  CHECK(!Drive(*links, [&] {
    while (to_lively->posted() < 50 && to_lively->HasRoom()) {
      kept.push_back(Pattern(200000, to_lively->posted()));
      CHECK(PostAll(*to_lively, kept.back()).ok());
    }
    return to_lively->taken() == 50;
  }));
  CHECK_EQ(to_stopped->taken(), 0);
  stopped.Signal(SIGCONT);
  CHECK(!Drive(*links, [&] { return to_stopped->taken() == 1; }));
  CHECK_EQ(lively.Await(NowNs() + 60 * kSecond), 0);
  CHECK_EQ(stopped.Await(NowNs() + 60 * kSecond), 0);
  CHECK(!Drive(*links, [&] { return true; }));
}

TEST(AnAbortTellsThePeersWhyAndTouchesNoMemory) {
  const auto links = ListenAll(2, 3);
  Warm(*links[0], *links[1]);
  auto bytes = std::make_unique<std::vector<std::byte>>(Pattern(16 << 20, 1));
  const auto sender = MustSend(*links[0], Spec(1, 1));
  const auto receiver = MustReceive(*links[1], Spec(0, 1));
  CHECK(receiver->Expect(bytes->size(), {}).ok());
  links[0]->Abort(MakeError(ErrorKind::kPeerLost, "rank 7 is dead", 7));
  bytes.reset();
  const auto error = Drive(*links[1], [] { return false; });
  CHECK(error && error->kind == ErrorKind::kPeerLost);
  CHECK_EQ(error->culprit, 7);
  CHECK(Has(error->message, "rank 0 gave up") && Has(error->message, "rank 7 is dead"));
  CHECK(Has(links[0]->Progress().error().message, "rank 7 is dead"));
  CHECK(!links[0]->HasUnsent() && !receiver->Arrived().ok());
  // In the middle of a message there is no room for words, but it ends at once all the same.
  const auto others = ListenAll(2, 1);
  Warm(*others[0], *others[1]);
  const auto sending = MustSend(*others[0], Spec(1, 1, 0, 1, 64 << 20));
  const auto big = Pattern(64 << 20, 1);
  CHECK(PostAll(*sending, big).ok());
  CHECK(others[0]->Progress().ok());
  others[0]->Abort(MakeError(ErrorKind::kAborted, "enough"));
  const auto second = Drive(*others[1], [] { return false; });
  CHECK(second && second->kind != ErrorKind::kTimeout);
  CHECK_EQ(second->culprit, 0);
}

TEST(WhoEndsInOrderIsMissedOnlyByWhoWaitsForIt) {
  auto links = ListenAll(2, 2);
  Warm(*links[0], *links[1]);
  links[1].reset();
  for (int count = 0; count < 4; ++count) {
    CHECK(links[0]->Progress().ok());
    Doze(*links[0]);
  }
  CHECK(!links[0]->HasUnsent());
  const auto receiver = MustReceive(*links[0], Spec(1, 5));
  CHECK(receiver->Expect(10, {}).ok());
  const auto error = Drive(*links[0], [] { return false; });
  CHECK(error && error->kind == ErrorKind::kPeerLost);
  CHECK_EQ(error->culprit, 1);
}
