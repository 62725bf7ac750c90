// Ranks as threads: bootstrap, control links and host share of InprocHub.
#include <poll.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/check.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/inproc.h"
#include "transport/mpi/mpi_links.h"

using namespace horoacc;

namespace {

std::shared_ptr<InprocHub> MakeHub(int size) {
  return std::move(InprocHub::Create(size, 4096, 1 << 20)).value();
}

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Text(const ControlMessage& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

bool Readable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, timeout_ms) == 1;
}

}  // namespace

TEST(AllGatherGivesEverybodyEverything) {
  constexpr int kSize = 5;
  const auto hub = MakeHub(kSize);
  std::vector<int> good(kSize, 0);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        const auto bootstrap = hub->MakeBootstrap(rank);
        bool all = bootstrap->rank() == rank && bootstrap->size() == kSize;
        for (int round = 0; round < 100; ++round) {
          const std::string blob = std::to_string(rank) + ":" + std::to_string(round);
          const auto blobs = bootstrap->AllGather(blob, NowNs() + 30 * kSecond);
          if (!blobs.ok() || blobs.value().size() != kSize) return;
          for (int from = 0; from < kSize; ++from) {
            all = all && blobs.value()[from] == std::to_string(from) + ":" + std::to_string(round);
          }
        }
        good[rank] = all;
      });
    }
  }
  for (int rank = 0; rank < kSize; ++rank) CHECK_EQ(good[rank], 1);
}

TEST(AllGatherNamesTheMissing) {
  const auto hub = MakeHub(3);
  const auto bootstrap = hub->MakeBootstrap(1);
  const auto blobs = bootstrap->AllGather("here", NowNs() + 20 * kMillisecond);
  CHECK(!blobs.ok());
  CHECK(blobs.error().kind == ErrorKind::kTimeout);
  CHECK(blobs.error().message.find("0, 2") != std::string::npos);
  CHECK_EQ(blobs.error().culprit, 0);
}

TEST(LinksKeepOrderAndWake) {
  const auto hub = MakeHub(2);
  const auto a = hub->MakeControlLinks(0);
  const auto b = hub->MakeControlLinks(1);
  CHECK(!Readable(b->WaitFd(), 0));
  CHECK(!b->Receive().value().has_value());
  for (int index = 0; index < 10; ++index) CHECK(a->Send(1, Bytes(std::to_string(index))).ok());
  CHECK(Readable(b->WaitFd(), 1000));
  for (int index = 0; index < 10; ++index) {
    CHECK(Readable(b->WaitFd(), 0));  // as long as something is left
    const auto message = std::move(b->Receive()).value();
    CHECK(message.has_value());
    CHECK_EQ(message->source, 0);
    CHECK_EQ(Text(*message), std::to_string(index));
  }
  CHECK(!Readable(b->WaitFd(), 0));
  CHECK_EQ(a->messages_sent(), 10U);
  CHECK_EQ(a->bytes_sent(), 10U);
  CHECK_EQ(std::string(a->kind()), std::string("inproc"));
  CHECK(!a->Send(0, Bytes("me")).ok());
  CHECK(!a->Send(2, Bytes("nobody")).ok());
}

TEST(LinksAcrossThreads) {
  constexpr int kCount = 5000;
  const auto hub = MakeHub(2);
  std::vector<int> got(2, 0);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto links = hub->MakeControlLinks(rank);
        const int64_t deadline = NowNs() + 60 * kSecond;
        int sent = 0;
        while ((got[rank] < kCount || sent < kCount) && NowNs() < deadline) {
          if (sent < kCount && links->Send(1 - rank, Bytes(std::to_string(sent))).ok()) ++sent;
          auto message = links->Receive();
          if (!message.ok()) return;
          if (message.value() && Text(*message.value()) == std::to_string(got[rank])) ++got[rank];
          if (!message.value() && sent == kCount) Readable(links->WaitFd(), 100);
        }
      });
    }
  }
  CHECK_EQ(got[0], kCount);
  CHECK_EQ(got[1], kCount);
}

TEST(ALostPeerIsNamedAfterItsLastWords) {
  const auto hub = MakeHub(3);
  const auto a = hub->MakeControlLinks(0);
  auto b = hub->MakeControlLinks(1);
  const auto c = hub->MakeControlLinks(2);
  CHECK(b->Send(0, Bytes("last words")).ok());
  CHECK(c->Send(1, Bytes("unread")).ok());
  b.reset();
  CHECK(Readable(a->WaitFd(), 1000));
  CHECK_EQ(Text(*a->Receive().value()), std::string("last words"));
  const auto lost = a->Receive();
  CHECK(!lost.ok());
  CHECK(lost.error().kind == ErrorKind::kPeerLost);
  CHECK_EQ(lost.error().culprit, 1);
  CHECK(!a->Receive().value().has_value());  // once
  const Status refused = a->Send(1, Bytes("hello?"));
  CHECK(!refused.ok());
  CHECK_EQ(refused.error().culprit, 1);
  CHECK(a->Send(2, Bytes("still here")).ok());
  CHECK(!c->Receive().ok());
  CHECK_EQ(Text(*c->Receive().value()), std::string("still here"));
}

TEST(HostShareIsOneMappingForAll) {
  const auto hub = MakeHub(3);
  const HostShare one = hub->MakeHostShare(0);
  const HostShare two = hub->MakeHostShare(2);
  CHECK_EQ(one.local_rank, 0);
  CHECK_EQ(two.local_rank, 2);
  CHECK(one.ranks == std::vector<int>({0, 1, 2}));
  CHECK(one.control.data() == two.control.data());
  CHECK_EQ(one.control.size(), 4096U);
  for (int local = 0; local < 3; ++local) {
    CHECK(one.memory[local].data() == two.memory[local].data());
    CHECK(one.memory[local].size() == 1 << 20);
    CHECK(one.wake[local] == two.wake[local]);
    CHECK(one.pidfds[local] == nullptr);
  }
  CHECK(one.memory[0].data() != one.memory[1].data());
}

TEST(ASecretIsDrawnOnceForAll) {
  const auto hub = MakeHub(3);
  std::vector<std::string> secrets(3);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto bootstrap = hub->MakeBootstrap(rank);
        secrets[rank] = DrawSecret(*bootstrap, NowNs() + 30 * kSecond).value();
      });
    }
  }
  CHECK_EQ(secrets[0].size(), 32U);
  CHECK(secrets[1] == secrets[0]);
  CHECK(secrets[2] == secrets[0]);
}
