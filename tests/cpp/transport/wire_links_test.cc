// What comes over sockets and from other ranks, damaged in every way that chance finds: it may be
// refused, but never believed and never read past its end. `make asan` is where this says most.
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "api/hosts.h"
#include "negotiate/multi_host/multi_host_messages.h"
#include "support/check.h"
#include "support/seeds.h"
#include "support/socket_pair.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/control/rank_directory.h"
#include "transport/data/tcp/tcp_peer.h"
#include "transport/memory/fd_passing.h"
#include "transport/net/frames.h"
#include "transport/net/handshake.h"
#include "transport/net/interfaces.h"
#include "transport/net/socket.h"

using namespace horoacc;

namespace {

using Random = std::mt19937_64;

std::string Noise(Random& random, size_t most) {
  std::string noise(random() % (most + 1), '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  return noise;
}

/// Flips, overwrites, drops or doubles a few bytes.
std::string Damage(std::string text, Random& random) {
  for (uint64_t strokes = 1 + random() % 4; strokes > 0 && !text.empty(); --strokes) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ 1 << random() % 8);
        break;
      case 1:
        text[at] = static_cast<char>(random());
        break;
      case 2:
        text.erase(at, 1 + random() % 8);
        break;
      case 3:
        text.insert(at, text.substr(at, 1 + random() % 16));
        break;
      default:
        text.replace(at, 4, "\xff\xff\xff\xff", 4);
    }
  }
  return text;
}

std::span<const std::byte> Raw(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct Wire : SocketPair {
  std::string Drain() {
    std::string all(1 << 16, '\0');
    all.resize(static_cast<size_t>(
        std::max<ssize_t>(::recv(far.get(), all.data(), all.size(), MSG_DONTWAIT), 0)));
    return all;
  }
  void Carry(const std::string& text) {
    if (!text.empty()) CHECK_EQ(::send(near.get(), text.data(), text.size(), 0), text.size());
  }
};

TEST(DamagedFramesAreNeverAnotherFrame) {
  Random random(1);
  for (int turn = 0; turn < 4000; ++turn) {
    check::ReseedHalfway(random, turn, 4000);
    Wire wire;
    FrameWriter writer(7);
    std::vector<std::string> sent;
    for (uint64_t count = 1 + random() % 3; count > 0; --count) {
      sent.push_back(Noise(random, 100));
      writer.Queue(5, Raw(sent.back()));
    }
    CHECK(writer.FlushTo(wire.near.get()).value());
    const std::string honest = wire.Drain();
    wire.Carry(turn % 3 == 0 ? Noise(random, 200) : Damage(honest, random));
    FrameReader reader(7, 200);
    CHECK(reader.FillFrom(wire.far.get()).ok());
    for (;;) {
      const auto frame = reader.Next();
      if (!frame.ok() || !frame.value()) break;
      // Chance may leave a frame as it was, or double it; it does not make one.
      CHECK_EQ(frame.value()->kind, 5U);
      CHECK(std::ranges::find(sent, TextOf(frame.value()->bytes)) != sent.end());
    }
  }
}

struct Nobody final : FrameReceiver {
  Result<std::shared_ptr<InboundMessage>> OnStripe(const DataHeader& stripe) override {
    return peer.OnStripe(stripe);
  }
  Status OnNotice(const DataHeader& header, std::string_view text) override {
    return peer.OnNotice(header, text);
  }
  SocketCounters counters;
  TcpPeer peer{1, 3, true, 0, 0, -1, 1, counters};
};

/// Headers that are whole but say what chance wants, as a peer could that is out of its mind.
DataHeader Mad(Random& random) {
  const auto draw = [&](uint64_t most) { return random() % 4 == 0 ? random() : random() % most; };
  DataHeader header;
  header.kind = static_cast<DataKind>(random() % 7);
  header.channel = static_cast<uint8_t>(random() % 2);
  header.flags = static_cast<uint16_t>(random() % 2);
  header.epoch = 3;
  header.set = static_cast<uint32_t>(draw(2));
  header.sequence = draw(3);
  header.length = static_cast<uint32_t>(draw(64));
  header.number = draw(4);
  // What a link that is not open yet may claim is bounded, but not small.
  header.total = std::min<uint64_t>(draw(128), 1 << 20);
  header.offset = draw(128);
  header.payload_check = static_cast<uint32_t>(random() % 2);
  header.check = header.Checksum();
  return header;
}

TEST(StreamsOfDataSurviveWhatTheyAreSent) {
  Random random(2);
  for (int turn = 0; turn < 3000; ++turn) {
    check::ReseedHalfway(random, turn, 3000);
    Wire wire;
    TcpTraffic traffic;
    Nobody nobody;
    SocketCounters counters;
    TcpStream stream(std::move(wire.far), 3, false, traffic, counters);
    InboundLink* const link = nobody.peer.in().Open({{0, 1}, 1, 0, 4, 128}).value();
    std::vector<std::byte> place(64);
    CHECK(link->Expect(place.size(), std::array{std::span(place)}).ok());
    for (int count = 0; count < 12; ++count) {
      const DataHeader header = Mad(random);
      std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
      text += Noise(random, 80);
      if (random() % 4 == 0) text = Damage(text, random);
      wire.Carry(text);
      const auto read = stream.Read(nobody);
      const auto arrived = link->Arrived();
      if (!read.ok() || !arrived.ok()) break;
    }
  }
}

TEST(HandshakesBelieveNothing) {
  Random random(3);
  const HandshakeTerms terms{"secret", LinkPurpose::kData, 9, 1, 4};
  for (int turn = 0; turn < 3000; ++turn) {
    check::ReseedHalfway(random, turn, 3000);
    auto dial = Handshake::Start(terms, Handshake::Side::kDial).value();
    auto accept = Handshake::Start(terms, Handshake::Side::kAccept).value();
    // One of the two greetings and the dialer's proof is damaged, and kept as long as it has to be.
    const uint64_t victim = random() % 4;
    bool damaged = false;
    Handshake* from = &dial;
    Handshake* to = &accept;
    for (uint64_t step = 0; step < 3; ++step, std::swap(from, to)) {
      std::string text = from->TakeOutput();
      CHECK_EQ(text.size(), to->wanted());
      if (step == victim) {
        std::string bad = random() % 3 == 0 ? Noise(random, text.size()) : Damage(text, random);
        bad.resize(text.size());
        damaged = bad != text;
        text = bad;
      }
      if (!to->Feed(text).ok()) break;
    }
    CHECK_EQ(accept.done(), !damaged);
  }
}

TEST(TablesAndErrorsOfTheRendezvous) {
  Random random(4);
  for (int turn = 0; turn < 20'000; ++turn) {
    check::ReseedHalfway(random, turn, 20'000);
    std::vector<std::string> blobs;
    for (int rank = 0; rank < 4; ++rank) blobs.push_back(Noise(random, 20));
    const std::string bytes = turn % 3 == 0 ? Noise(random, 100) : Damage(PackTable(blobs), random);
    const auto table = UnpackTable(Raw(bytes), 4);
    if (table.ok()) {
      size_t total = 0;
      for (const std::string& blob : table.value()) total += blob.size() + sizeof(uint64_t);
      CHECK(table.value().size() == 4 && total <= bytes.size());
    }
    std::vector<int> hosts;
    while (hosts.size() < 40)
      hosts.insert(hosts.end(), 1 + random() % 8, static_cast<int>(random() % 9));
    const int count = static_cast<int>(hosts.size());
    CHECK(UnpackRuns(PackRuns(hosts), count).value() == hosts);
    const auto runs =
        UnpackRuns(turn % 3 == 0 ? Noise(random, 64) : Damage(PackRuns(hosts), random), count);
    CHECK(!runs.ok() || std::ssize(runs.value()) == count);
    std::vector<std::string> names;
    for (const int host : hosts) {
      const auto kind = static_cast<unsigned>(host) % 3;
      names.push_back(kind == 0 ? "a" : std::string(kind, 'n') + std::to_string(90 + names.size()));
    }
    CHECK(UnpackNames(PackNames(names), count).value() == names);
    const auto shown =
        UnpackNames(turn % 3 == 0 ? Noise(random, 64) : Damage(PackNames(names), random), count);
    CHECK(!shown.ok() || std::ssize(shown.value()) <= count);
    const Error error = MakeError(ErrorKind::kTimeout, "too late", 3);
    const std::string packed = turn % 3 == 0 ? Noise(random, 20) : Damage(PackError(error), random);
    CHECK(IsErrorKind(static_cast<int>(UnpackError(Raw(packed)).kind)));
  }
}

TEST(TextsOfOtherRanks) {
  Random random(5);
  InterfaceOffer offer{"host#boot", 1, {}};
  offer.interfaces.push_back({"eth0", "10.0.0.1", "10.0.0.0", 1000, false});
  offer.interfaces.push_back({"lo", "[::1]", "[::1]", 0, true});
  for (int turn = 0; turn < 10'000; ++turn) {
    check::ReseedHalfway(random, turn, 10'000);
    const auto read = UnpackOffer(Damage(PackOffer(offer), random));
    if (read.ok()) {
      for (const std::string& wanted : {std::string(), std::string("eth0,lo"), Noise(random, 9)})
        (void)ChooseInterfaces(std::array{offer, read.value()}, wanted);
    }
    const Error error = MakeError(ErrorKind::kMismatch, "why", 2);
    CHECK(IsErrorKind(static_cast<int>(UnpackAbort(Damage(PackAbort(error), random), 1).kind)));
    (void)UnpackAbort(Noise(random, 30), 1);
  }
  for (const char* text : {"", ":", "a", "a:", ":1", "[", "[]:1", "[::1", "1.2.3.4:99999",
                           "1.2.3.4:x", "::1", "[::1]:-1"}) {
    const auto resolved = ResolveAddress(text);
    CHECK(!resolved.ok() && resolved.error().kind == ErrorKind::kConfig);
    CHECK(!RankAddresses::Unpack(text + std::string("\n127.0.0.1:1")).has_value() || !*text);
  }
  // A peer's word makes no rank ask the system's resolver.
  CHECK(ResolveAddress("localhost:80").ok() && !NumericAddress("localhost:80").ok());
  CHECK(!RankAddresses::Unpack("localhost:80\n").has_value());
  CHECK(!RankAddresses::Unpack("\nlocalhost:80").has_value());
  const auto addresses = RankAddresses::Unpack("127.0.0.1:80\n[::1]:81");
  CHECK(addresses && addresses->Pack() == "127.0.0.1:80\n[::1]:81");
}

/// Rank 1 of 2, which is told what a test wants.
class ToldByRank0 : public Bootstrap {
 public:
  explicit ToldByRank0(std::string answer) : answer_(std::move(answer)) {}
  [[nodiscard]] int rank() const override { return 1; }
  [[nodiscard]] int size() const override { return 2; }

 protected:
  Result<std::string> Round(const std::string&, const RawAnswers&, int64_t) override {
    return '+' + answer_;
  }

 private:
  const std::string answer_;
};

TEST(HostsThatRank0Tells) {
  const auto told = [](const std::vector<int>& lowest) {
    ToldByRank0 bootstrap(
        PackTable(std::vector<std::string>{PackRuns(lowest), PackNames({"a", "b"})}));
    return HostsOfRanks(bootstrap, 1, "b", 0).ok();
  };
  CHECK(told({0, 1}) && told({0, 0}));
  CHECK(!told({0, -1}) && !told({0, 2}) && !told({1, 1}));
}

TEST(AddressesThatRank0Tells) {
  alignas(64) static std::byte memory[1 << 20];
  CHECK(RankDirectory::BytesFor(2) <= sizeof(memory));
  MultiHostParts parts;
  parts.directory = std::make_shared<RankDirectory>(memory, 2);
  parts.host_of = {0, 1};
  const std::string good = "127.0.0.1:80\n127.0.0.1:81";
  const auto tell = [&](const std::string& entry) {
    ToldByRank0 bootstrap(entry);
    const Status outcome = ExchangeAddresses(bootstrap, RankAddresses{}, parts, 0);
    if (!outcome.ok()) CHECK(outcome.error().culprit == 0);
    return outcome.ok();
  };
  CHECK(tell("0\n" + good));
  for (const char* rank : {"-1", "2", "", "99999999999999999999"})
    CHECK(!tell(rank + ("\n" + good)));
  CHECK(!tell("0" + good) && !tell("0\nhost:80\n127.0.0.1:81") && !tell("0\n"));
  const auto agree = [](const std::string& own, const std::string& rank0) {
    ToldByRank0 bootstrap(PackTable(std::vector<std::string>{own, rank0, PackRuns({0, 1})}));
    return AgreeOnInterfaces(bootstrap, "a", 0, "", 0).ok();
  };
  CHECK(agree("127.0.0.1", "[::1]"));
  CHECK(!agree("localhost", "[::1]") && !agree("127.0.0.1", "a.host") && !agree("", "[::1]"));
}

TEST(DecisionsBetweenHosts) {
  Random random(6);
  for (int turn = 0; turn < 20'000; ++turn) {
    check::ReseedHalfway(random, turn, 20'000);
    MultiHostDecision multi_host;
    const uint64_t calls = 1 + random() % 3;
    for (uint64_t call = 0; call < calls; ++call) {
      multi_host.calls.push_back({call % 2 == 0, call % 2 == 0 ? Noise(random, 9) : "", call});
      multi_host.decision.facts.push_back({});
      multi_host.decision.facts.back().rows = {1, 2, 3};
    }
    multi_host.decision.partial = calls == 1 && random() % 2 == 0;
    WireWriter writer;
    const CallNumbers numbers;
    Put(writer, multi_host, numbers);
    std::string bytes = TextOf(writer.bytes());
    WireReader honest(Raw(bytes));
    (void)GetMultiHostDecision(honest, numbers);
    CHECK(honest.ok() && honest.at_end());
    bytes = Damage(bytes, random);
    WireReader reader(Raw(bytes));
    const MultiHostDecision read = GetMultiHostDecision(reader, numbers);
    if (!reader.ok()) continue;
    const bool runs = read.decision.kind == Decision::Kind::kRun;
    CHECK(runs || read.decision.kind == Decision::Kind::kError ||
          read.decision.kind == Decision::Kind::kJoin);
    CHECK(static_cast<int>(read.decision.path) < kPathCount);
    CHECK(IsErrorKind(static_cast<int>(read.decision.error.kind)));
    CHECK_EQ(read.decision.facts.size(), runs ? read.calls.size() : 0);
  }
}

TEST(DescriptorsThatWereNotAnnouncedAreClosed) {
  Random random(7);
  const int free_before = ::dup(0);
  ::close(free_before);
  for (int turn = 0; turn < 500; ++turn) {
    check::ReseedHalfway(random, turn, 500);
    Wire wire;
    const std::array<int, 2> fds{0, 1};
    const size_t count = random() % 3;
    CHECK(SendFds(wire.near.get(), static_cast<uint32_t>(turn), std::span(fds).first(count),
                  INT64_MAX)
              .ok());
    if (turn % 2 == 0) {
      // The note is read off, so that what follows does not fit the descriptors.
      uint32_t note[2];
      CHECK_EQ(::recv(wire.far.get(), note, 1 + random() % sizeof(note), 0) > 0, true);
      wire.Carry(Noise(random, 16));
    }
    const auto passed = ReceiveFds(wire.far.get(), 1);
    if (passed.ok() && turn % 2 == 1) CHECK_EQ(passed.value().fds.size(), count);
  }
  const int free_after = ::dup(0);
  ::close(free_after);
  CHECK_EQ(free_after, free_before);
}

}  // namespace
