// Sharing a host's memory between real processes.
#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/futex.h"
#include "support/check.h"
#include "support/forked_ranks.h"
#include "transport/bootstrap/inproc.h"
#include "transport/bootstrap/tcp_rendezvous.h"
#include "transport/memory/host_share.h"

using namespace horoacc;

namespace {

Result<std::unique_ptr<Bootstrap>> Meet(int rank, int size, FreePort& port) {
  TcpOptions options;
  options.rank = rank;
  options.size = size;
  options.address = port.address;
  options.secret = "s";
  options.deadline_ns = NowNs() + 30 * kSecond;
  if (rank == 0) options.listen_fd = port.listener.get();
  return ConnectTcp(options);
}

HostOptions Options(const std::string& label) {
  HostOptions options;
  options.label = label;
  options.secret = "the job's secret";
  options.control_bytes = 1 << 16;
  options.memory_bytes = 1ULL << 32;
  options.deadline_ns = NowNs() + 30 * kSecond;
  return options;
}

bool Readable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, timeout_ms) == 1;
}

/// Runs ShareHost on `size` ranks that are threads; the texts of their errors, or "".
std::vector<std::string> ShareInThreads(int size, const std::function<HostOptions(int)>& options) {
  const auto hub = std::move(InprocHub::Create(size, 4096, 4096)).value();
  std::vector<std::string> texts(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto bootstrap = hub->MakeBootstrap(rank);
      const auto share = ShareHost(*bootstrap, options(rank));
      texts[rank] = share.ok() ? "" : share.error().message;
      if (!share.ok()) CHECK(share.error().kind == ErrorKind::kConfig);
    });
  }
  threads.clear();
  return texts;
}

/// One rank's part of the test below; 0 if all is as it should be.
int UseSharedMemory(int rank, int size, FreePort& port) {
  const auto bootstrap = Meet(rank, size, port);
  if (!bootstrap.ok()) return 1;
  auto shared = ShareHost(*bootstrap.value(), Options("one host"));
  if (!shared.ok()) {
    std::printf("%s\n", shared.error().message.c_str());
    return 2;
  }
  const HostShare& share = shared.value();
  if (share.local_rank != rank || static_cast<int>(share.ranks.size()) != size) return 3;
  if (share.control.size() != 1 << 16 || share.memory[rank].size() != 1ULL << 32) return 4;
  // Everybody writes its rank into every memory and counts itself on the control segment.
  for (int peer = 0; peer < size; ++peer) {
    share.memory[peer].data()[(3ULL << 30) + static_cast<size_t>(rank)] = std::byte{100};
  }
  auto& count = *reinterpret_cast<std::atomic<uint32_t>*>(share.control.data());
  count.fetch_add(1);
  FutexWakeAll(count);
  const int64_t deadline = NowNs() + 30 * kSecond;
  for (uint32_t seen = 0; (seen = count.load()) < static_cast<uint32_t>(size);) {
    if (NowNs() > deadline) return 5;
    FutexWait(count, seen, 100 * kMillisecond);
  }
  for (int peer = 0; peer < size; ++peer) {
    if (share.memory[rank].data()[(3ULL << 30) + static_cast<size_t>(peer)] != std::byte{100}) {
      return 6;
    }
  }
  // A ring of wake-ups through the passed eventfds.
  const uint64_t one = 1;
  if (::write(share.wake[(rank + 1) % size]->get(), &one, sizeof(one)) != sizeof(one)) return 7;
  if (!Readable(share.wake[rank]->get(), 20000)) return 8;
  for (int peer = 0; peer < size; ++peer) {
    if ((share.pidfds[peer] == nullptr) != (peer == rank)) return 9;
  }
  // The last rank dies; everybody else sees it at its pidfd.
  const auto before_the_end = bootstrap.value()->AllGather("", deadline);
  if (!before_the_end.ok()) return 10;
  if (rank == size - 1) return 0;
  return Readable(share.pidfds[size - 1]->get(), 20000) ? 0 : 11;
}

}  // namespace

TEST(ProcessesShareMemoryWakeAndSeeDeath) {
  for (const int size : {2, 4}) {
    FreePort port;
    const auto codes = RunForked(size, [&](int rank) { return UseSharedMemory(rank, size, port); });
    for (int rank = 0; rank < size; ++rank) CHECK_EQ(codes[rank], 0);
  }
}

TEST(DifferentLabelsDoNotShare) {
  FreePort port;
  const auto codes = RunForked(3, [&](int rank) {
    const auto bootstrap = Meet(rank, 3, port);
    if (!bootstrap.ok()) return 1;
    const auto share = ShareHost(*bootstrap.value(), Options(rank == 1 ? "a" : "b"));
    if (!share.ok()) return 2;
    const std::vector<int> expected = rank == 1 ? std::vector<int>{1} : std::vector<int>{0, 2};
    if (share.value().ranks != expected) return 3;
    if (share.value().local_rank != (rank == 2 ? 1 : 0)) return 4;
    share.value().control.data()[rank] = std::byte{1};
    const auto written = bootstrap.value()->AllGather("", NowNs() + 30 * kSecond);
    if (!written.ok()) return 5;
    return share.value().control.data()[1] == std::byte{rank == 1} ? 0 : 6;
  });
  for (int rank = 0; rank < 3; ++rank) CHECK_EQ(codes[rank], 0);
}

TEST(NothingIsPassedToAWrongSecret) {
  const auto texts = ShareInThreads(3, [](int rank) {
    HostOptions options = Options("host");
    options.deadline_ns = NowNs() + 3 * kSecond;  // on a busy machine too the others come
    if (rank == 2) options.secret = "guessed";
    return options;
  });
  for (const std::string& text : texts) {
    CHECK(text.find("rank(s) 2 did not come") != std::string::npos);
    CHECK(text.find("does not know the job's secret") != std::string::npos);
  }
}

TEST(AFailureOfOneRankReachesAll) {
  const auto texts = ShareInThreads(3, [](int rank) {
    HostOptions options = Options("host");
    if (rank == 1) options.memory_bytes = 0;
    return options;
  });
  for (const std::string& text : texts) CHECK(text.find("rank 1 cannot share") == 0);
}

TEST(ADeadPeerIsNamedAtTheDeadline) {
  FreePort port;
  const auto codes = RunForked(3, [&](int rank) {
    auto bootstrap = Meet(rank, 3, port);
    if (!bootstrap.ok()) return 1;
    if (rank == 1) ::_exit(0);
    HostOptions options = Options("host");
    options.deadline_ns = NowNs() + 5 * kSecond;
    const auto share = ShareHost(*bootstrap.value(), options);
    if (share.ok()) return 2;
    return share.error().culprit == 1 ? 0 : 3;
  });
  for (int rank = 0; rank < 3; ++rank) CHECK_EQ(codes[rank], 0);
}

TEST(APeerThatStopsBeforeTheSocketIsNamed) {
  // Takes part in the bootstrap, but never comes to the socket.
  const auto hub = std::move(InprocHub::Create(2, 4096, 4096)).value();
  std::jthread absent([&] {
    const auto bootstrap = hub->MakeBootstrap(1);
    const auto exchange = [&](const std::string& blob) {
      return bootstrap->Exchange(blob, "", {}, NowNs() + 30 * kSecond);
    };
    CHECK(exchange("host").ok());
    CHECK(exchange("0\n").ok());
    CHECK(!exchange("").ok());
  });
  const auto bootstrap = hub->MakeBootstrap(0);
  HostOptions options = Options("host");
  options.deadline_ns = NowNs() + kSecond;
  const auto share = ShareHost(*bootstrap, options);
  CHECK(!share.ok());
  CHECK(share.error().kind == ErrorKind::kConfig);
  CHECK_EQ(share.error().culprit, 1);
  CHECK(share.error().message.find("rank(s) 1 did not come") != std::string::npos);
}

TEST(OneRankAloneNeedsNobody) {
  const auto texts = ShareInThreads(1, [](int) { return Options("host"); });
  CHECK_EQ(texts[0], std::string());
}
