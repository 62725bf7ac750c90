// What the data links over TCP are made of: the size of a buffer, signs of life, stripes, and
// frames that do not fit.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "support/check.h"
#include "transport/data/tcp/stream_tuning.h"
#include "transport/data/tcp/tcp_peer.h"
#include "transport/data/tcp/tcp_stream.h"

using namespace horoacc;

namespace {

/// The frames that one end sends, as the other end sees them.
struct Witness final : FrameReceiver {
  Result<std::shared_ptr<InboundMessage>> OnStripe(const DataHeader& stripe) override {
    return inbound.Take(stripe);
  }
  Status OnNotice(const DataHeader& header, std::string_view text) override {
    notices.emplace_back(header.kind, std::string(text));
    return {};
  }
  Inbound inbound{5};
  std::vector<std::pair<DataKind, std::string>> notices;
};

struct Pair {
  explicit Pair(uint64_t epoch = 3, uint64_t other = 3, bool checksums = false) {
    int fds[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    out.emplace(Fd(fds[0]), epoch, checksums, traffic, counters);
    in.emplace(Fd(fds[1]), other, false, traffic, counters);
  }
  TcpTraffic traffic;
  SocketCounters counters;
  std::optional<TcpStream> out;
  std::optional<TcpStream> in;
  Witness witness;
};

DataHeader Stripe(uint64_t number, uint64_t total, uint64_t offset, uint32_t length) {
  DataHeader header;
  header.epoch = 3;
  header.set = 2;
  header.sequence = 8;
  header.channel = 1;
  header.number = number;
  header.total = total;
  header.offset = offset;
  header.length = length;
  return header;
}

/// What the receiver says to raw bytes.
Error Verdict(Pair& pair, DataHeader header) {
  header.check = header.Checksum();
  CHECK_EQ(::send(pair.out->fd().get(), &header, sizeof(header), 0), sizeof(header));
  const auto read = pair.in->Read(pair.witness);
  CHECK(!read.ok());
  return read.error();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(BuffersGrowToTwiceTheBandwidthDelayProduct) {
  // 1 Gbit/s over 40 ms is 5 MB.
  CHECK_EQ(WantedBuffer(StreamHealth{125'000'000, 40'000}.under_way(), 1 << 20), 10'000'000);
  CHECK_EQ(WantedBuffer(StreamHealth{125'000'000, 100}.under_way(), 1 << 20), 1 << 20);
  CHECK_EQ(WantedBuffer(StreamHealth{}.under_way(), 4096), 4096);
  // A buffer that bounds the rate doubles until it does not: 64 KiB over 40 ms, then 128 KiB, ...
  uint64_t buffer = 64 << 10;
  for (int round = 0; round < 20; ++round) {
    const uint64_t rate = std::min<uint64_t>(125'000'000, buffer * 25);
    buffer = WantedBuffer(StreamHealth{rate, 40'000}.under_way(), buffer);
  }
  CHECK_EQ(buffer, 10'000'000);
}

/// A peer's end of connections, in the hands of the test.
struct FarEnds {
  explicit FarEnds(int count) {
    for (int stream = 0; stream < count; ++stream) {
      int fds[2];
      CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      near.push_back(fds[0]);
      CHECK(peer.Join(Fd(fds[0])).ok());
      ends.push_back(std::make_unique<TcpStream>(Fd(fds[1]), 3, false, traffic, counters));
    }
  }
  void Say(size_t stream, DataKind kind, const std::string& text = "") {
    DataHeader header;
    header.kind = kind;
    CHECK(ends[stream]->Queue(header, text).ok());
    CHECK(ends[stream]->Flush().value());
  }
  Fd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  TcpTraffic traffic;
  SocketCounters counters;
  TcpPeer peer{5, 3, false, 0, 0, epoll.get(), 4, counters};
  std::vector<int> near;  ///< of the peer's connections here
  std::vector<std::unique_ptr<TcpStream>> ends;
};

TEST(WhatAPeerSaysLastOnAnotherConnectionExplainsThatOneBreaks) {
  const std::vector<std::byte> bytes(100);
  const std::span<const std::byte> piece(bytes);
  for (const bool in_order : {true, false}) {
    // One is reset: what it was sent had not been read when it closed.
    FarEnds reset(3);
    const std::byte unread{1};
    CHECK_EQ(::send(reset.near[0], &unread, 1, MSG_NOSIGNAL), 1);
    if (in_order) reset.Say(2, DataKind::kLeave);
    reset.ends[0].reset();
    const auto read = reset.peer.Read(0);
    CHECK_EQ(read.ok(), in_order);
    // One takes nothing any more.
    FarEnds closed(3);
    OutboundLink* const link = closed.peer.out().Open({{2, 8}, 1}).value();
    closed.peer.out().Post(*link, {&piece, 1});
    if (in_order) closed.Say(1, DataKind::kLeave);
    closed.ends[0].reset();
    const auto sent = closed.peer.Send();
    CHECK_EQ(sent.ok(), in_order);
    if (in_order) continue;
    for (const auto* broken : {&read, &sent}) {
      CHECK(broken->error().kind == ErrorKind::kPeerLost);
      CHECK_EQ(broken->error().culprit, 5);
      CHECK(Has(broken->error().message, "connection 1 of 3"));
    }
  }
}

TEST(AHostIsLostIfNoConnectionHasHeardOfIt) {
  const auto gone = [](std::vector<int64_t> seconds) {
    for (int64_t& each : seconds) each *= kSecond;
    return IsGone(seconds, 12 * kSecond);
  };
  CHECK(!gone({}) && !gone({11}) && gone({12}) && gone({12, 13}));
  CHECK(!gone({1, 35}) && gone({1, 36}));
  CHECK(!IsGone(std::vector<int64_t>{1000 * kSecond}, 0));
}

struct SilenceLooks {
  static constexpr int64_t kStart = 1000 * kSecond;
  int64_t At(int64_t seconds, bool owes, uint64_t silent_ms, uint64_t acknowledged = 7,
             uint64_t data_packets = 3) {
    StreamHealth health;
    health.owes = owes;
    health.silence = silent_ms;
    health.acknowledged = acknowledged;
    health.data_packets = data_packets;
    return host.Look(health, kStart + seconds * kSecond);
  }
  HostSilence host;
};

TEST(AHostIsSilentFromWhenItOwesAnAnswer) {
  SilenceLooks looks;
  CHECK_EQ(looks.At(0, false, 60'000), 0);
  // It was idle for a minute, and is asked only now.
  CHECK_EQ(looks.At(1, true, 61'000), 0);
  CHECK_EQ(looks.At(4, true, 64'000), 3 * kSecond);
  // It says that it has got no more yet: its reader is stopped.
  CHECK_EQ(looks.At(5, true, 10), 10 * kMillisecond);
  CHECK_EQ(looks.At(8, true, 3'010), 3'010 * kMillisecond);
  CHECK_EQ(looks.At(9, false, 4'010), 0);
  CHECK_EQ(looks.At(10, true, 5'010), 0);
  // Nobody looked for a minute, and meanwhile it has answered.
  CHECK_EQ(looks.At(70, true, 50'000, 8), 0);
  CHECK_EQ(looks.At(72, true, 52'000, 8), 2 * kSecond);
}

TEST(DataThatAHostSendsAgainIsNoAnswer) {
  SilenceLooks looks;
  CHECK_EQ(looks.At(0, true, 10), 0);
  for (int second = 1; second < 9; ++second) {
    CHECK_EQ(looks.At(second, true, 10, 7, 3 + second), second * kSecond);
  }
  CHECK_EQ(looks.At(9, true, 10, 8, 12), 0);
}

TEST(BuffersAreTheKernelsOwnUpToItsLimit) {
  for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
    const Fd own(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const uint64_t fresh = BufferOf(own.get(), direction);
    CHECK(fresh > 0);
    AdaptBuffer(own.get(), direction, 100 << 20);
    CHECK_EQ(BufferOf(own.get(), direction), fresh);
    // One that is as large as the kernel makes it grows with what is under way, if that is allowed.
    PrepareStream(own.get(), 64 << 20);
    const uint64_t full = BufferOf(own.get(), direction);
    AdaptBuffer(own.get(), direction, 100 << 20);
    const bool allowed = full >= 64 << 20;
    CHECK_EQ(BufferOf(own.get(), direction), allowed ? 200 << 20 : full);
    AdaptBuffer(own.get(), direction, 1 << 20);
    CHECK_EQ(BufferOf(own.get(), direction), allowed ? 200 << 20 : full);
  }
}

TEST(AMessageIsCutIntoStripesAndCreditsGoFirst) {
  Outbound outbound;
  OutboundLink* const link = outbound.Open({{0, 1}, 0}).value();
  const std::vector<std::byte> bytes(1'000'000);
  const std::span<const std::byte> piece(bytes);
  outbound.Post(*link, {&piece, 1});
  outbound.Owe({{0, 2}, 3}, 17);
  std::vector<iovec> memory;
  auto frame = outbound.Next(3, 4, memory);
  CHECK(frame->header.kind == DataKind::kCredit && frame->link == nullptr && memory.empty());
  CHECK_EQ(frame->header.number, 17);
  uint64_t covered = 0;
  int stripes = 0;
  while ((frame = outbound.Next(3, 4, memory))) {
    CHECK_EQ(frame->header.offset, covered);
    CHECK_EQ(frame->header.total, bytes.size());
    covered += frame->header.length;
    ++stripes;
    CHECK(frame->header.length >= 64 << 10 || covered == bytes.size());
  }
  CHECK_EQ(covered, bytes.size());
  CHECK_EQ(stripes, 4);
  CHECK(outbound.empty() && outbound.waiting());
  CHECK(outbound.Credit({{0, 1}, 0}, 1) && !outbound.Credit({{0, 1}, 0}, 2));
  CHECK(!outbound.waiting());
}

TEST(LinksTakeTurns) {
  Outbound outbound;
  const std::vector<std::byte> bytes(200'000);
  const std::span<const std::byte> piece(bytes);
  for (uint8_t channel = 0; channel < 3; ++channel) {
    outbound.Post(*outbound.Open({{0, 1}, channel}).value(), {&piece, 1});
  }
  std::vector<iovec> memory;
  std::string order;
  while (const auto frame = outbound.Next(3, 2, memory)) {
    order += static_cast<char>('0' + frame->header.channel);
  }
  CHECK_EQ(order, std::string("012012"));
}

TEST(FramesThatDoNotFitAreErrorsThatNameBoth) {
  {
    Pair pair(3, 4);
    DataHeader header = Stripe(0, 10, 0, 10);
    const Error error = Verdict(pair, header);
    CHECK(error.kind == ErrorKind::kMismatch);
    CHECK(Has(error.message, "epoch 3") && Has(error.message, "4"));
  }
  {
    Pair pair;
    DataHeader header = Stripe(0, 10, 0, 10);
    header.magic = 1;
    CHECK(Has(Verdict(pair, header).message, "broken header"));
  }
  {
    Pair pair;
    DataHeader header = Stripe(0, 0, 0, 3000);
    header.kind = DataKind::kAbort;
    CHECK(Has(Verdict(pair, header).message, "broken length"));
  }
  for (const DataHeader& header :
       {Stripe(4, 10, 0, 10), Stripe(0, 101, 0, 10), Stripe(0, 10, 5, 6), Stripe(0, 10, 11, 0)}) {
    Pair pair;
    const LinkSpec spec{{2, 8}, 5, 1, 4, 100};
    InboundLink* const link = pair.witness.inbound.Open(spec).value();
    const Error error = Verdict(pair, header);
    CHECK(error.kind == ErrorKind::kMismatch);
    CHECK(Has(error.message, "collective 8 of set 2, channel 1"));
    CHECK(Has(error.message, "message " + std::to_string(header.number) + " from rank 5"));
    CHECK_EQ(link->released(), 0);
  }
}

/// Sends one message as its receiver would get it if bit `flipped` of it were damaged.
std::string Damaged(bool checksums, size_t flipped) {
  Pair pair(3, 3, checksums);
  const std::string sent = "twenty bytes of data";
  const auto bytes = std::as_bytes(std::span(sent));
  Outbound outbound;
  OutboundLink* const link = outbound.Open({{2, 8}, 1}).value();
  outbound.Post(*link, std::array{bytes});
  CHECK(pair.out->Fill(outbound, 1).value());
  int wire[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, wire), 0);
  CHECK(pair.out->Flush().value());
  std::string raw(200, '\0');
  raw.resize(static_cast<size_t>(::recv(pair.in->fd().get(), raw.data(), raw.size(), 0)));
  CHECK_EQ(raw.size(), sizeof(DataHeader) + sent.size());
  raw[flipped / 8] ^= static_cast<char>(1 << flipped % 8);
  CHECK_EQ(::send(wire[0], raw.data(), raw.size(), 0), raw.size());
  ::close(wire[0]);
  TcpTraffic traffic;
  SocketCounters counters;
  TcpStream damaged(Fd(wire[1]), 3, false, traffic, counters);
  const LinkSpec spec{{2, 8}, 5, 1, 4, 100};
  InboundLink* const inbound = pair.witness.inbound.Open(spec).value();
  std::string got(sent.size(), '\0');
  CHECK(inbound->Expect(got.size(), std::array{std::as_writable_bytes(std::span(got))}).ok());
  const auto read = damaged.Read(pair.witness);
  const bool whole = inbound->Arrived().value() != nullptr;
  if (read.ok()) return whole && got != sent ? "a wrong message" : "nothing noticed";
  CHECK(!whole);
  return read.error().message;
}

TEST(AFlippedBitOfAHeaderIsNoticedBeforeTheHeaderIsBelieved) {
  for (size_t bit = 0; bit < 8 * sizeof(DataHeader); ++bit) {
    CHECK(Has(Damaged(false, bit), bit < 32 ? "broken header" : "damaged on its way"));
  }
}

TEST(AFlippedBitOfThePayloadIsNoticedWithChecksumsOnly) {
  for (size_t bit = 8 * sizeof(DataHeader); bit < 8 * (sizeof(DataHeader) + 20); ++bit) {
    CHECK_EQ(Damaged(true, bit), std::string("20 bytes of a message were damaged on their way"));
    CHECK_EQ(Damaged(false, bit), std::string("a wrong message"));
  }
}

TEST(ChecksumsAreThoseOfTheStandard) {
  // RFC 3720, B.4.
  const std::string zeroes(32, '\0');
  const std::string ones(32, '\xff');
  std::string counted(32, '\0');
  for (size_t at = 0; at < counted.size(); ++at) counted[at] = static_cast<char>(at);
  for (const auto& [text, expected] :
       {std::pair(zeroes, 0x8a9136aaU), std::pair(ones, 0x62a8ab43U),
        std::pair(counted, 0x46dd794eU), std::pair(std::string("123456789"), 0xe3069283U)}) {
    const auto bytes = std::as_bytes(std::span(text));
    CHECK_EQ(Crc32c(bytes), expected);
    CHECK_EQ(Crc32cByTable(bytes), expected);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      CHECK_EQ(Crc32c(bytes.subspan(cut), Crc32c(bytes.first(cut))), expected);
      CHECK_EQ(Crc32cByTable(bytes.subspan(cut), Crc32cByTable(bytes.first(cut))), expected);
    }
  }
}

TEST(WhatWasReleasedDoesNotComeAgain) {
  Pair pair;
  const LinkSpec spec{{2, 8}, 5, 1, 4, 100};
  InboundLink* const link = pair.witness.inbound.Open(spec).value();
  CHECK(link->Expect(0, {}).ok());
  DataHeader empty = Stripe(0, 0, 0, 0);
  empty.check = empty.Checksum();
  CHECK_EQ(::send(pair.out->fd().get(), &empty, sizeof(empty), 0), sizeof(empty));
  CHECK(pair.in->Read(pair.witness).ok());
  CHECK(link->Arrived().value() != nullptr);
  link->Release();
  CHECK(Has(Verdict(pair, empty).message, "1 messages were released before"));
}

TEST(NoticesArriveWhole) {
  Pair pair;
  const std::string text(TcpStream::kLongestText + 100, 'x');
  DataHeader header;
  header.kind = DataKind::kAbort;
  CHECK(pair.out->Queue(header, text).ok());
  CHECK(pair.out->Flush().value());
  CHECK(pair.in->Read(pair.witness).value());
  CHECK_EQ(pair.witness.notices.size(), 1);
  CHECK_EQ(pair.witness.notices[0].second, text.substr(0, TcpStream::kLongestText));
}

TEST(EarlyMessagesThatTheLinkCannotHoldAreFoundWhenItIsOpened) {
  for (const LinkSpec& spec : {LinkSpec{{2, 8}, 5, 1, 2, 100}, LinkSpec{{2, 8}, 5, 1, 4, 9}}) {
    Inbound inbound(5);
    CHECK(inbound.Take(Stripe(2, 10, 0, 10)).ok());
    const auto opened = inbound.Open(spec);
    CHECK(!opened.ok() && opened.error().kind == ErrorKind::kMismatch);
    CHECK(Has(opened.error().message, "message 2 from rank 5"));
  }
}
