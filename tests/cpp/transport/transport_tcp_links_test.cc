// Control links over TCP: order, sizes, tiny buffers, unauthenticated peers, death of a peer.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/check.h"
#include "support/forked_ranks.h"
#include "support/sealings.h"
#include "support/tcp_jobs.h"
#include "transport/bootstrap/inproc.h"
#include "transport/bootstrap/tcp_rendezvous.h"
#include "transport/control/tcp_links.h"
#include "transport/memory/segment.h"
#include "transport/net/frames.h"

using namespace horoacc;
using horoacc::testing::AllSealings;
using horoacc::testing::ConnectAll;

namespace {

TcpLinksOptions Options() {
  TcpLinksOptions options;
  options.secret = "the job's secret";
  options.epoch = 3;
  options.deadline_ns = NowNs() + 60 * kSecond;
  return options;
}

/// Links of all ranks, connected in a thread each.
std::vector<std::unique_ptr<ControlLinks>> Connect(int size, const TcpLinksOptions& options) {
  const auto hub = std::move(InprocHub::Create(size, 4096, 4096)).value();
  std::vector<std::unique_ptr<ControlLinks>> links(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto bootstrap = hub->MakeBootstrap(rank);
      auto connected = ConnectAll(*bootstrap, options);
      CHECK(connected.ok());
      if (connected.ok()) links[rank] = std::move(connected).value();
    });
  }
  threads.clear();
  return links;
}

std::vector<std::byte> Pattern(size_t length, int seed) {
  std::vector<std::byte> bytes(length);
  for (size_t at = 0; at < length; ++at) {
    bytes[at] = static_cast<std::byte>(at * 31 + static_cast<size_t>(seed));
  }
  return bytes;
}

/// The next message or error within 30 s, sleeping on WaitFd.
Result<std::optional<ControlMessage>> Await(ControlLinks& links) {
  const int64_t deadline = NowNs() + 30 * kSecond;
  while (NowNs() < deadline) {
    auto message = links.Receive();
    if (!message.ok() || message.value()) return message;
    [[maybe_unused]] const Status ready = WaitReady(links.WaitFd(), POLLIN, deadline);
  }
  return MakeError(ErrorKind::kTimeout, "nothing came");
}

bool Readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, 0) == 1;
}

}  // namespace

namespace {

void CheckSizes(const Sealing& sealing) {
  TcpLinksOptions options = Options();
  options.sealing = sealing;
  const auto links = Connect(2, options);
  const size_t sizes[] = {0, 1, 100, 4096, 65536, 1000000, 3, 5000000, 7};
  std::jthread sender([&] {
    for (const size_t size : sizes) {
      CHECK(links[0]->Send(1, Pattern(size, static_cast<int>(size))).ok());
    }
    // What the network does not take at once needs further calls.
    for (int64_t until = NowNs() + 60 * kSecond; NowNs() < until;) {
      auto message = links[0]->Receive();
      if (!message.ok() || message.value()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (const size_t size : sizes) {
    const auto message = Await(*links[1]);
    CHECK(message.ok());
    if (!message.ok()) return;
    CHECK_EQ(message.value()->source, 0);
    CHECK(message.value()->bytes == Pattern(size, static_cast<int>(size)));
  }
  CHECK(links[1]->Send(0, Pattern(1, 1)).ok());
  sender.join();
  CHECK_EQ(links[0]->messages_sent(), 9U);
  CHECK_EQ(links[0]->bytes_sent(), 6069743U);
  CHECK_EQ(std::string(links[0]->kind()), std::string("tcp"));
}

}  // namespace

TEST(MessagesOfAllSizesArriveInOrder) {
  CheckSizes({});
  for (const Sealing& sealing : AllSealings()) CheckSizes(sealing);
}

TEST(EveryRankTalksToEveryOtherThroughTinyBuffers) {
  constexpr int kSize = 4;
  constexpr int kRounds = 60;
  TcpLinksOptions options = Options();
  options.sealing = AllSealings().back();
  options.send_buffer = 4096;  // much less than a message
  const auto links = Connect(kSize, options);
  std::vector<int> received(kSize, 0);
  std::atomic<int> complete = 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      ControlLinks& mine = *links[rank];
      std::vector<int> next(kSize, 0);
      int sent = 0;
      for (int64_t until = NowNs() + 90 * kSecond; NowNs() < until;) {
        if (sent < kRounds) {
          for (int peer = 0; peer < kSize; ++peer) {
            if (peer == rank) continue;
            if (!mine.Send(peer, Pattern(100 + sent * 2477 % 90000, rank * 1000 + sent)).ok())
              return;
          }
          ++sent;
        }
        auto message = mine.Receive();
        if (!message.ok()) return;  // a peer that is done has closed: all of its words are here
        if (!message.value()) {
          if (sent < kRounds) continue;
          // Stays until all have everything: its own backlog only moves when it looks.
          if (complete == kSize) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          continue;
        }
        const ControlMessage& got = *message.value();
        const int index = next[got.source]++;
        CHECK(got.bytes == Pattern(100 + index * 2477 % 90000, got.source * 1000 + index));
        if (++received[rank] == (kSize - 1) * kRounds) ++complete;
      }
    });
  }
  threads.clear();
  for (int rank = 0; rank < kSize; ++rank) CHECK_EQ(received[rank], (kSize - 1) * kRounds);
}

TEST(WaitFdStaysReadableWhileMessagesAreLeft) {
  const auto links = Connect(2, Options());
  CHECK(!Readable(links[1]->WaitFd()));
  for (int index = 0; index < 3; ++index) CHECK(links[0]->Send(1, Pattern(10, index)).ok());
  // All three are read from the socket with the first one.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int index = 0; index < 3; ++index) {
    CHECK(Readable(links[1]->WaitFd()));
    CHECK(links[1]->Receive().value()->bytes == Pattern(10, index));
  }
  CHECK(!Readable(links[1]->WaitFd()));
  CHECK(!links[1]->Receive().value().has_value());
}

TEST(ALostPeerIsNamedOnceAfterItsLastWords) {
  auto links = Connect(3, Options());
  CHECK(links[1]->Send(0, Pattern(100000, 1)).ok());
  links[1].reset();
  const auto last = Await(*links[0]);
  CHECK(last.ok() && last.value()->bytes == Pattern(100000, 1));
  const auto lost = Await(*links[0]);
  CHECK(!lost.ok());
  CHECK(lost.error().kind == ErrorKind::kPeerLost);
  CHECK_EQ(lost.error().culprit, 1);
  CHECK(!links[0]->Receive().value().has_value());
  const uint64_t sent = links[0]->messages_sent();
  CHECK(links[0]->Send(1, Pattern(1, 1)).ok());  // it has been said once
  CHECK_EQ(links[0]->messages_sent(), sent);
  CHECK(links[0]->Send(2, Pattern(5, 2)).ok());
  CHECK(!Await(*links[2]).ok());  // rank 2 learns of rank 1 too
  CHECK(Await(*links[2]).value()->bytes == Pattern(5, 2));
  CHECK(!links[0]->Send(0, Pattern(1, 1)).ok());
  CHECK(!links[0]->Send(9, Pattern(1, 1)).ok());
}

TEST(WhoSendsToALostPeerHearsItsLastWordsFirst) {
  auto links = Connect(2, Options());
  CHECK(links[1]->Send(0, Pattern(1000, 1)).ok());
  links[1].reset();
  // The first goes to a closed connection and is answered with a reset, which the others meet.
  for (int index = 0; index < 20; ++index) {
    CHECK(links[0]->Send(1, Pattern(100, index)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(Readable(links[0]->WaitFd()));
  const auto last = Await(*links[0]);
  CHECK(last.ok() && last.value()->bytes == Pattern(1000, 1));
  const auto lost = Await(*links[0]);
  CHECK(!lost.ok());
  CHECK(lost.error().kind == ErrorKind::kPeerLost);
  CHECK(!links[0]->Receive().value().has_value());
  CHECK(!Readable(links[0]->WaitFd()));
}

TEST(AKilledProcessIsNoticedAndNamed) {
  FreePort port;
  const Segment control = std::move(Segment::Create("test", 4096)).value();
  auto& seen = *reinterpret_cast<std::atomic<int>*>(control.data());
  const auto codes = RunForked(3, [&](int rank) {
    TcpOptions meet;
    meet.rank = rank;
    meet.size = 3;
    meet.address = port.address;
    meet.secret = "s";
    meet.deadline_ns = NowNs() + 30 * kSecond;
    if (rank == 0) meet.listen_fd = port.listener.get();
    const auto bootstrap = ConnectTcp(meet);
    if (!bootstrap.ok()) return 1;
    const auto links = ConnectAll(*bootstrap.value(), Options());
    if (!links.ok()) return 2;
    if (rank == 1) {
      // Dies in the middle of a long message.
      if (!links.value()->Send(0, Pattern(50 << 20, 1)).ok()) return 3;
      ::kill(::getpid(), SIGKILL);
    }
    const auto lost = Await(*links.value());
    if (lost.ok() || lost.error().kind != ErrorKind::kPeerLost) return 4;
    // Stays until both have seen it: its own end would be news as well.
    ++seen;
    for (int64_t until = NowNs() + 30 * kSecond; seen < 2 && NowNs() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return lost.error().culprit == 1 ? 0 : 5;
  });
  CHECK_EQ(codes[0], 0);
  CHECK_EQ(codes[1], 1000 + SIGKILL);
  CHECK_EQ(codes[2], 0);
}

/// Links of which none is made at once but those of rank 0, or none at all.
std::vector<std::unique_ptr<ControlLinks>> ConnectStar(int size) {
  const auto hub = std::move(InprocHub::Create(size, 4096, 4096)).value();
  std::vector<std::unique_ptr<ControlLinks>> links(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpLinksOptions options = Options();
      options.sealing = AllSealings()[0];  // by the key of a connection that is made later
      for (int peer = 1; rank == 0 && peer < size; ++peer) options.awaits.push_back(peer);
      if (rank > 0) options.dials = {0};
      const auto bootstrap = hub->MakeBootstrap(rank);
      auto connected = ConnectAll(*bootstrap, options);
      CHECK(connected.ok());
      if (connected.ok()) links[rank] = std::move(connected).value();
    });
  }
  threads.clear();
  return links;
}

TEST(OtherLinksAreMadeWithTheFirstMessage) {
  const auto links = ConnectStar(4);
  CHECK(links[0]->Send(2, Pattern(3, 1)).ok());
  CHECK(Await(*links[2]).value()->bytes == Pattern(3, 1));
  CHECK(links[1]->peers() == std::vector<int>{0});
  CHECK(links[1]->Send(3, Pattern(70000, 1)).ok());
  CHECK(links[1]->Send(3, Pattern(3, 2)).ok());
  CHECK(links[1]->HasUnsent());
  std::vector<ControlMessage> got;
  for (const int64_t until = NowNs() + 30 * kSecond; got.size() < 2 && NowNs() < until;) {
    CHECK(links[1]->Receive().ok());
    auto message = links[3]->Receive();
    CHECK(message.ok());
    if (message.value()) got.push_back(std::move(*message.value()));
  }
  CHECK_EQ(got.size(), 2U);
  CHECK(got[0].source == 1 && got[0].bytes == Pattern(70000, 1));
  CHECK(got[1].bytes == Pattern(3, 2));
  CHECK((links[1]->peers() == std::vector<int>{0, 3}));
  CHECK((links[3]->peers() == std::vector<int>{0, 1}));
  CHECK(links[2]->peers() == std::vector<int>{0});
  CHECK(links[3]->Send(1, Pattern(5, 3)).ok());
  CHECK(Await(*links[1]).value()->bytes == Pattern(5, 3));
}

TEST(TwoRanksThatDialEachOtherKeepTheOrderOfTheirMessages) {
  for (int round = 0; round < 20; ++round) {
    const auto links = ConnectStar(3);
    constexpr int kMessages = 50;
    std::vector<std::jthread> threads;
    for (const int rank : {1, 2}) {
      threads.emplace_back([&, rank] {
        ControlLinks& mine = *links[rank];
        int received = 0;
        for (int sent = 0; received < kMessages || mine.HasUnsent();) {
          if (sent < kMessages) CHECK(mine.Send(3 - rank, Pattern(10, sent++)).ok());
          auto message = mine.Receive();
          CHECK(message.ok());
          if (message.value()) CHECK(message.value()->bytes == Pattern(10, received++));
        }
      });
    }
    threads.clear();
  }
}

/// The ends of the connections that this process has over TCP.
std::set<int> Connected() {
  std::set<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET)
      found.insert(fd);
  }
  return found;
}

TEST(OneOfTwoConnectionsThatIsCutLosesTheLink) {
  // Whether the cut one carries the messages of both ranks, of one or of none.
  std::vector<std::vector<std::unique_ptr<ControlLinks>>> jobs;
  for (size_t cut = 0; cut < 4; ++cut) {
    const auto& links = jobs.emplace_back(ConnectStar(3));
    const std::set<int> before = Connected();
    // Each dials before it looks at what has come.
    for (const int rank : {1, 2}) CHECK(links[rank]->Send(3 - rank, Pattern(3, rank)).ok());
    std::set<int> heard, ends;
    for (const int64_t until = NowNs() + 30 * kSecond; NowNs() < until;) {
      for (const int rank : {1, 2}) {
        const auto message = links[rank]->Receive();
        CHECK(message.ok());
        if (message.value()) heard.insert(rank);
      }
      ends.clear();
      std::ranges::set_difference(Connected(), before, std::inserter(ends, ends.end()));
      if (heard.size() == 2 && ends.size() == 4) break;
    }
    CHECK_EQ(heard.size(), 2U);
    CHECK_EQ(ends.size(), 4U);
    if (ends.size() != 4) return;
    for (int look = 0; look < 20; ++look) {  // until both ends know both connections
      for (const int rank : {1, 2}) CHECK(links[rank]->Receive().ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK_EQ(::shutdown(*std::next(ends.begin(), static_cast<ptrdiff_t>(cut)), SHUT_RDWR), 0);
  }
  for (const auto& links : jobs) {
    for (const int rank : {1, 2}) {
      const auto lost = Await(*links[rank]);
      CHECK(!lost.ok());
      if (lost.ok()) return;
      CHECK(lost.error().kind == ErrorKind::kPeerLost);
      CHECK_EQ(lost.error().culprit, 3 - rank);
      CHECK(lost.error().message.find("connections was cut") != std::string::npos ||
            lost.error().message.find("it closed") != std::string::npos);
    }
  }
}

TEST(AMissingPeerIsNamedAtTheDeadline) {
  // Rank 1 gives an address where nobody answers.
  const auto hub = std::move(InprocHub::Create(2, 4096, 4096)).value();
  FreePort port;
  port.listener = Fd();
  std::jthread absent([&] {
    const auto bootstrap = hub->MakeBootstrap(1);
    CHECK(bootstrap->AllGather(port.address, NowNs() + 10 * kSecond).ok());
  });
  TcpLinksOptions options = Options();
  options.deadline_ns = NowNs() + kSecond;
  const auto bootstrap = hub->MakeBootstrap(0);
  const auto connected = ConnectAll(*bootstrap, options);
  CHECK(!connected.ok());
  CHECK(connected.error().kind == ErrorKind::kTimeout);
  CHECK_EQ(connected.error().culprit, 1);
  CHECK(connected.error().message.find("refused") != std::string::npos);
}

// What each rank is told when rank 0 has another secret. Rank 1 waits for a better one until then.
std::vector<std::string> TextsWithAnotherSecret(int64_t seconds) {
  const auto hub = std::move(InprocHub::Create(2, 4096, 4096)).value();
  std::vector<std::string> texts(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TcpLinksOptions options = Options();
      options.deadline_ns = NowNs() + seconds * kSecond;
      if (rank == 0) options.secret = "guessed";
      const auto bootstrap = hub->MakeBootstrap(rank);
      const auto connected = ConnectAll(*bootstrap, options);
      texts[rank] = connected.ok() ? "connected" : connected.error().message;
    });
  }
  threads.clear();
  return texts;
}

TEST(AnUnauthenticatedPeerAtTheControlPortIsRefused) {
  const auto names_the_secret = [](const std::vector<std::string>& texts) {
    return texts[0].find("secret") != std::string::npos &&
           texts[1].find("does not know the job's secret") != std::string::npos;
  };
  // On a very busy machine the two may not have connected by then.
  CHECK(names_the_secret(TextsWithAnotherSecret(3)) ||
        names_the_secret(TextsWithAnotherSecret(30)));
}

TEST(FramesRefuseWhatTheyCannotTrust) {
  int ends[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Fd a(ends[0]);
  const Fd b(ends[1]);
  const auto refused = [&](FrameReader reader) {
    CHECK(reader.FillFrom(b.get()).value());
    return !reader.Next().ok();
  };
  FrameWriter stale(1);
  stale.Queue(1, Pattern(10, 1));
  CHECK(stale.FlushTo(a.get()).value());
  CHECK(refused(FrameReader(2, 100)));
  FrameWriter longer(2);
  longer.Queue(1, Pattern(101, 1));
  CHECK(longer.FlushTo(a.get()).value());
  CHECK(refused(FrameReader(2, 100)));
  CHECK_EQ(::send(a.get(), std::string(100, 'x').data(), 100, 0), 100);
  CHECK(refused(FrameReader(2, 100)));

  // A frame in single bytes.
  FrameWriter slow(2);
  slow.Queue(5, Pattern(3, 1));
  CHECK(slow.FlushTo(a.get()).value());
  char bytes[64];
  const ssize_t length = ::recv(b.get(), bytes, sizeof(bytes), 0);
  FrameReader reader(2, 100);
  for (ssize_t at = 0; at < length; ++at) {
    CHECK(!reader.Next().value().has_value());
    CHECK_EQ(::send(a.get(), bytes + at, 1, 0), 1);
    CHECK(reader.FillFrom(b.get()).value());
  }
  const auto frame = std::move(reader.Next()).value();
  CHECK(frame.has_value());
  CHECK_EQ(frame->kind, 5U);
  CHECK(frame->bytes == Pattern(3, 1));
  CHECK(!reader.partial());
}
