// Data links over TCP, ranks as threads: what all data links do, over any number of streams, and
// what only these do.
#include <barrier>

#include "support/data_battery.h"
#include "support/sealings.h"

using namespace horoacc;
using namespace horoacc::testing;

namespace {

auto SealedBy(const Sealing& sealing) {
  return [&sealing](int, TcpDataOptions& options) { options.sealing = sealing; };
}

}  // namespace

TEST(MessagesOfAllSizesOverAnyNumberOfStreams) {
  std::vector<std::pair<int, Sealing>> cases = {{1, {}}, {2, {}}, {4, {}}, {8, {}}};
  for (const Sealing& sealing : AllSealings()) cases.emplace_back(2, sealing);
  for (const auto& [streams, sealing] : cases) {
    const auto links = ListenAll(2, streams, SealedBy(sealing));
    std::barrier all(2);
    InThreads(2,
              [&](int rank) { CheckSizes(*links[rank], rank, 2, [&] { all.arrive_and_wait(); }); });
    CHECK_EQ(links[0]->streams(1), streams);
    CHECK_EQ(links[1]->streams(0), streams);
    const DataCounters counters = links[0]->counters();
    CHECK_EQ(counters.messages, 12);
    CHECK(counters.bytes > 17 << 20);
    CHECK_EQ(counters.copied, 0);
    const TcpTraffic traffic = links[0]->traffic(1);
    CHECK(traffic.bytes_sent > counters.bytes);
    CHECK(traffic.bytes_sent < counters.bytes + counters.bytes / 100);
    CHECK(traffic.bytes_received > counters.bytes);
    CHECK(traffic.bytes_received <= links[1]->traffic(0).bytes_sent);
    CHECK(traffic.send_calls > 0 && traffic.receive_calls > 0);
    CHECK_EQ(std::string(links[0]->kind()), std::string("tcp"));
  }
}

// Two hosts, and what is chosen: one connection, and eight once it was full at either end.
TEST(ConnectionsAreDialedWhenOneIsFull) {
  for (const int sender : {0, 1}) {
    const int receiver = 1 - sender;
    const auto links = ListenAll(
        2, 0, [](int, TcpDataOptions& options) { options.socket_buffer = 64 << 10; }, true);
    const auto outgoing = MustSend(*links[sender], Spec(receiver, 1));
    const auto incoming = MustReceive(*links[receiver], Spec(sender, 1));
    const auto deliver = [&](size_t size, int connections) {
      const auto bytes = Pattern(size, 1);
      CHECK(incoming->Expect(size, {}).ok());
      CHECK(PostAll(*outgoing, bytes).ok());
      std::atomic<bool> arrived = false;
      InThreads(2, [&](int rank) {
        const auto error = Drive(*links[rank], [&] {
          if (rank == receiver && !arrived && Look(*incoming) != nullptr) arrived = true;
          return arrived && links[rank]->streams(1 - rank) >= connections;
        });
        CHECK(!error);
      });
      incoming->Release();
      CHECK(!Drive(*links[receiver], [&] { return !links[receiver]->HasUnsent(); }));
      CHECK(!Drive(*links[sender], [&] { return outgoing->taken() == outgoing->posted(); }));
      for (const int rank : {0, 1}) CHECK_EQ(links[rank]->streams(1 - rank), connections);
    };
    for (int message = 0; message < 10; ++message) deliver(1000, 1);
    // More than a socket takes at a time.
    deliver(24 << 20, 8);
  }
}

TEST(ThreeRanksDoWhatAllDataLinksDo) {
  std::vector<Sealing> sealings = AllSealings();
  sealings.emplace_back();
  for (const Sealing& sealing : sealings) {
    const auto links = ListenAll(3, 2, SealedBy(sealing));
    std::barrier all(3);
    InThreads(3,
              [&](int rank) { RunBattery(*links[rank], rank, 3, [&] { all.arrive_and_wait(); }); });
  }
}

TEST(ARankThatShutsDownIsMissedByNoStandingLink) {
  auto links = ListenAll(2);
  CheckLeaving(*links[0], std::move(links[1]));
}

TEST(AnnouncedMessagesAreReceivedWhereTheyAreWanted) {
  const auto links = ListenAll(2, 4);
  const size_t size = 9 << 20;
  const auto bytes = Pattern(size, 1);
  std::vector<std::byte> where(size);
  const auto receiver = MustReceive(*links[1], Spec(0, 1));
  const std::span<std::byte> piece(where);
  CHECK(receiver->Expect(size, {&piece, 1}).ok());
  const auto sender = MustSend(*links[0], Spec(1, 1));
  CHECK(PostAll(*sender, bytes).ok());
  InThreads(2, [&](int rank) {
    if (rank == 0) {
      CHECK(!Drive(*links[0], [&] { return sender->taken() == 1; }));
    } else {
      CHECK(!Drive(*links[1], [&] { return Look(*receiver) != nullptr; }));
      CHECK(Look(*receiver)->placed);
      CHECK_EQ(static_cast<const void*>(Look(*receiver)->pieces[0].data()),
               static_cast<const void*>(where.data()));
      CHECK(where == bytes);
      receiver->Release();
      CHECK(!Drive(*links[1], [&] { return !links[1]->HasUnsent(); }));
    }
  });
}

namespace {

void CheckClosedLink(const Sealing& sealing) {
  const auto links = ListenAll(2, 2, [&](int rank, TcpDataOptions& options) {
    SealedBy(sealing)(rank, options);
    options.socket_buffer = 1 << 20;  // the sockets have no room for the whole message
  });
  constexpr size_t kBig = 24 << 20;
  // The receiver's end is closed while its message is on its way; then the sender's.
  auto bytes = std::make_unique<std::vector<std::byte>>(Pattern(kBig, 1));
  auto sender = MustSend(*links[0], Spec(1, 1));
  auto receiver = MustReceive(*links[1], Spec(0, 1));
  std::vector<std::byte> where(kBig);
  const std::span<std::byte> piece(where);
  CHECK(receiver->Expect(kBig, {&piece, 1}).ok());
  CHECK(PostAll(*sender, *bytes).ok());
  CHECK(!Drive(*links[1], [&] {
    CHECK(links[0]->Progress().ok());
    return links[1]->traffic(0).bytes_received > (4 << 20);
  }));
  receiver.reset();
  const std::vector<std::byte> then = where;
  CHECK(links[0]->Progress().ok() && links[1]->Progress().ok());
  sender.reset();
  bytes.reset();
  const auto next = Pattern(100000, 2);
  const auto sender2 = MustSend(*links[0], Spec(1, 2));
  const auto receiver2 = MustReceive(*links[1], Spec(0, 2));
  CHECK(PostAll(*sender2, next).ok());
  CHECK(receiver2->Expect(next.size(), {}).ok());
  CHECK(!Drive(*links[1], [&] {
    CHECK(links[0]->Progress().ok());
    return Look(*receiver2) != nullptr;
  }));
  CHECK(Gather(*Look(*receiver2)) == next);
  CHECK(where == then);
  // Not all of the message was sent.
  CHECK(links[0]->traffic(1).bytes_sent < kBig);
}

}  // namespace

TEST(AClosedLinkTouchesNoMemoryAndTheNextOnesGoOn) {
  CheckClosedLink({});
  for (const Sealing& sealing : AllSealings()) CheckClosedLink(sealing);
}

TEST(WhatTheSocketHasIsReadNoMore) {
  const auto links = ListenAll(2, 1);
  auto bytes = std::make_unique<std::vector<std::byte>>(Pattern(100000, 3));
  const auto expected = *bytes;
  auto sender = MustSend(*links[0], Spec(1, 1));
  CHECK(PostAll(*sender, *bytes).ok());
  CHECK(sender->Reads());  // there is no connection yet
  CHECK(!Drive(*links[0], [&] {
    CHECK(links[1]->Progress().ok());
    return !sender->Reads();
  }));
  CHECK_EQ(sender->taken(), 0);
  sender.reset();
  bytes.reset();
  auto receiver = MustReceive(*links[1], Spec(0, 1));
  CHECK(receiver->Expect(expected.size(), {}).ok());
  CHECK(!Drive(*links[1], [&] {
    CHECK(links[0]->Progress().ok());
    return Look(*receiver) != nullptr;
  }));
  CHECK(Gather(*Look(*receiver)) == expected);
  receiver->Release();
  receiver.reset();
  // The credit comes for a link that is closed, which is nothing.
  CHECK(!Drive(*links[1], [&] { return !links[1]->HasUnsent(); }));
  CHECK(links[0]->Progress().ok());
}

TEST(ManySmallMessagesShareSystemCalls) {
  const auto links = ListenAll(2, 4);
  constexpr uint64_t kCount = 64;
  const auto sender = MustSend(*links[0], Spec(1, 1, 0, kCount, 100));
  const auto receiver = MustReceive(*links[1], Spec(0, 1, 0, kCount, 100));
  const auto bytes = Pattern(100, 0);
  for (uint64_t number = 0; number < kCount; ++number) {
    CHECK(PostAll(*sender, bytes).ok());
    CHECK(receiver->Expect(100, {}).ok());
  }
  uint64_t released = 0;
  CHECK(!Drive(*links[1], [&] {
    CHECK(links[0]->Progress().ok());
    for (; Look(*receiver) != nullptr; ++released) {
      CHECK(Gather(*Look(*receiver)) == bytes);
      receiver->Release();
    }
    return released == kCount;
  }));
  CHECK(links[0]->traffic(1).send_calls <= kCount / 4);
}
