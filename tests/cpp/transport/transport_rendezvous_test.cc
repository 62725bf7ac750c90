// The TCP rendezvous: ranks as threads, unauthenticated peers of every kind, ranks that are missing
// or die.
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/check.h"
#include "support/forked_ranks.h"
#include "transport/bootstrap/tcp_rendezvous.h"
#include "transport/net/handshake.h"

using namespace horoacc;

namespace {

/// A deadline that passes; until then, on a busy machine too, those who can have come.
constexpr int64_t kSoon = 3 * kSecond;

TcpOptions Options(int rank, int size, FreePort& port, int64_t seconds = 60) {
  TcpOptions options;
  options.rank = rank;
  options.size = size;
  options.address = port.address;
  if (rank == 0) options.listen_fd = port.listener.Release();
  options.secret = "the job's secret";
  options.deadline_ns = NowNs() + seconds * kSecond;
  return options;
}

using Outcome = Result<std::unique_ptr<Bootstrap>>;

/// Runs ConnectTcp and `then` in a thread for each of the given ranks.
std::vector<std::string> Run(const std::vector<TcpOptions>& all,
                             const std::function<std::string(Bootstrap&)>& then) {
  std::vector<std::string> texts(all.size());
  std::vector<std::jthread> threads;
  for (size_t index = 0; index < all.size(); ++index) {
    threads.emplace_back([&, index] {
      Outcome connected = ConnectTcp(all[index]);
      texts[index] = connected.ok() ? then(*connected.value()) : connected.error().message;
    });
  }
  threads.clear();
  return texts;
}

/// Gathers a few times; "good" or what was wrong.
std::string GatherSome(Bootstrap& bootstrap) {
  for (int round = 0; round < 20; ++round) {
    // Long blobs now and then: more than the sockets' buffers take at once.
    const size_t length = round % 7 == 0 ? 300000 : 10;
    const auto blob = [&](int rank) { return std::string(length, static_cast<char>('a' + rank)); };
    const auto blobs = bootstrap.AllGather(blob(bootstrap.rank()), NowNs() + 60 * kSecond);
    if (!blobs.ok()) return blobs.error().message;
    for (int rank = 0; rank < bootstrap.size(); ++rank) {
      if (blobs.value()[rank] != blob(rank)) return "a wrong blob";
    }
  }
  return "good";
}

Fd Dial(const std::string& address) {
  Fd fd = std::move(StartDial(ResolveAddress(address).value().front())).value();
  CHECK(WaitReady(fd.get(), POLLOUT, NowNs() + 10 * kSecond).ok());
  return fd;
}

bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::printf("'%s' does not contain '%s'\n", text.c_str(), part.c_str());
  return false;
}

}  // namespace

TEST(RanksMeetAndGather) {
  for (const int size : {1, 2, 5}) {
    FreePort port;
    std::vector<TcpOptions> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(Options(rank, size, port));
    for (const std::string& text : Run(all, GatherSome)) CHECK_EQ(text, std::string("good"));
  }
}

TEST(RankZeroBindsThePortAndTheOthersMayComeFirst) {
  FreePort port;
  std::vector<TcpOptions> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(Options(rank, 3, port));
  ::close(all[0].listen_fd);  // the port is free again
  all[0].listen_fd = -1;
  std::vector<std::string> others;
  std::string first;
  {
    std::jthread early([&] { others = Run({all[1], all[2]}, GatherSome); });
    std::jthread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      first = Run({all[0]}, GatherSome)[0];
    });
  }
  CHECK_EQ(first, std::string("good"));
  for (const std::string& text : others) CHECK_EQ(text, std::string("good"));
}

TEST(UnauthenticatedPeersDoNotHurtTheJob) {
  FreePort port;
  std::vector<TcpOptions> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(Options(rank, 3, port));
  // Before rank 0 even looks: silent ones, more than rank 0 keeps at once...
  std::vector<Fd> silent;
  for (int index = 0; index < 100; ++index) silent.push_back(Dial(port.address));
  // ... garbage, a flood of it, half a greeting, a client of another protocol ...
  std::vector<Fd> noisy;
  for (const std::string& bytes :
       {std::string(200, '\xff'), std::string(1 << 20, 'x'), std::string("HACC\1\0\0\0", 8),
        std::string("GET / HTTP/1.0\r\n\r\n")}) {
    noisy.push_back(Dial(port.address));
    ::send(noisy.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // ... and ranks that know another secret, or none of this job's ranks.
  TcpOptions wrong_secret = all[1];
  wrong_secret.secret = "guessed";
  wrong_secret.deadline_ns = NowNs() + kSoon;
  TcpOptions out_of_range = all[1];
  out_of_range.rank = 7;
  out_of_range.size = 9;
  std::vector<std::string> texts;
  std::string wrong;
  std::string beyond;
  {
    std::latch sent_away(1);  // the one who guessed tries until its deadline
    std::jthread intruder([&] {
      wrong = Run({wrong_secret}, GatherSome)[0];
      sent_away.count_down();
    });
    std::jthread outsider([&] { beyond = Run({out_of_range}, GatherSome)[0]; });
    std::jthread job([&] {
      std::vector<std::jthread> ranks;
      texts.resize(3);
      ranks.emplace_back([&] { texts[0] = Run({all[0]}, GatherSome)[0]; });
      sent_away.wait();
      ranks.emplace_back([&] { texts[1] = Run({all[1]}, GatherSome)[0]; });
      ranks.emplace_back([&] { texts[2] = Run({all[2]}, GatherSome)[0]; });
    });
  }
  for (const std::string& text : texts) CHECK_EQ(text, std::string("good"));
  CHECK(Contains(wrong, "secret"));
  CHECK(Contains(beyond, "expects 9 ranks, rank 0 expects 3"));
}

TEST(ADuplicateRankIsRefused) {
  FreePort port;
  std::vector<TcpOptions> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(Options(rank, 3, port));
  std::vector<std::string> texts(4);
  std::atomic<int> refused = 0;
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] { texts[0] = Run({all[0]}, GatherSome)[0]; });
    for (const int index : {1, 2}) {  // both claim rank 1; whoever comes second is sent away
      threads.emplace_back([&, index] {
        texts[index] = Run({all[1]}, GatherSome)[0];
        if (texts[index] != "good") ++refused;
      });
    }
    threads.emplace_back([&] {
      for (int64_t until = NowNs() + 30 * kSecond; refused == 0 && NowNs() < until;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      texts[3] = Run({all[2]}, GatherSome)[0];
    });
  }
  CHECK_EQ(refused.load(), 1);
  CHECK_EQ(texts[0], std::string("good"));
  CHECK_EQ(texts[3], std::string("good"));
  CHECK(Contains(texts[1] == "good" ? texts[2] : texts[1], "rank 1 is here already"));
}

TEST(TheMissingAreNamedOnEveryRank) {
  FreePort port;
  std::vector<TcpOptions> all;
  for (const int rank : {0, 2}) {
    all.push_back(Options(rank, 5, port));
    all.back().deadline_ns = NowNs() + kSoon;
  }
  const auto texts = Run(all, GatherSome);
  CHECK(Contains(texts[0], "rank(s) 1, 3, 4 of 5"));
  CHECK(Contains(texts[1], "rank(s) 1, 3, 4 of 5"));
}

TEST(NobodyThereIsATimeoutWithTheReason) {
  FreePort port;
  TcpOptions alone = Options(1, 2, port);
  port.listener = Fd();  // refused from here on
  alone.deadline_ns = NowNs() + kSecond;
  CHECK(Contains(Run({alone}, GatherSome)[0], "Connection refused"));
}

TEST(ARankThatComesTooLateForAGatherIsNamed) {
  FreePort port;
  std::vector<TcpOptions> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(Options(rank, 3, port));
  std::atomic<int> done = 0;
  const auto texts = Run(all, [&](Bootstrap& bootstrap) -> std::string {
    if (bootstrap.rank() == 2) {
      for (int64_t until = NowNs() + 30 * kSecond; done < 2 && NowNs() < until;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return "late";
    }
    const auto blobs = bootstrap.AllGather("x", NowNs() + kSoon);
    ++done;
    return blobs.ok() ? "?" : blobs.error().message + "#" + std::to_string(blobs.error().culprit);
  });
  CHECK(Contains(texts[0], "rank(s) 2#2"));
  CHECK(Contains(texts[1], "rank(s) 2#2"));
}

TEST(ADeadRankIsNamedAtOnce) {
  FreePort port;
  std::vector<TcpOptions> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(Options(rank, 3, port));
  const int64_t start = NowNs();
  const auto texts = Run(all, [&](Bootstrap& bootstrap) -> std::string {
    if (bootstrap.rank() == 2) return "leaves";
    const auto blobs = bootstrap.AllGather("x", NowNs() + 60 * kSecond);
    if (blobs.ok()) return "?";
    const bool lost = blobs.error().kind == ErrorKind::kPeerLost;
    return std::string(lost ? "lost " : "? ") + std::to_string(blobs.error().culprit);
  });
  CHECK_EQ(texts[0], std::string("lost 2"));
  CHECK_EQ(texts[1], std::string("lost 2"));
  CHECK(NowNs() - start < 50 * kSecond);  // not by the deadline
}

TEST(BadOptionsAreRefused) {
  FreePort port;
  TcpOptions options = Options(1, 2, port);
  options.secret = "";
  CHECK(Contains(Run({options}, GatherSome)[0], "secret"));
  options = Options(3, 2, port);
  CHECK(Contains(Run({options}, GatherSome)[0], "no rank 3 among 2"));
  options = Options(0, 2, port);
  ::close(options.listen_fd);
  options.listen_fd = -1;
  options.address = "nonsense";
  CHECK(Contains(Run({options}, GatherSome)[0], "host:port"));
}
