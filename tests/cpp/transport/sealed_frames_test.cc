// What goes between hosts, sealed: the standards' examples, and an attacker on the way who changes,
// repeats, reorders, leaves out, cuts and sends back what the production code has sent.
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/sealings.h"
#include "support/socket_pair.h"
#include "transport/bootstrap/agreed_sealing.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/bootstrap/inproc.h"
#include "transport/data/tcp/tcp_stream.h"
#include "transport/net/frames.h"

using namespace horoacc;
using namespace horoacc::testing;

namespace {

std::string Hex(const void* bytes, size_t count) {
  std::string text;
  for (size_t at = 0; at < count; ++at) {
    const auto byte = static_cast<const uint8_t*>(bytes)[at];
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

Seal MakeSeal(const Sealing& sealing, const Digest& key, Seal::End end) {
  return std::move(Seal::Make(sealing, key, end)).value();
}

/// The tag of a first piece of bytes; `text` is encrypted, if the kind encrypts.
std::string TagOf(SealKind kind, const Digest& key, std::string& text) {
  Seal seal = MakeSeal(SealingBy(kind), key, Seal::End::kSend);
  Seal::Tag tag;
  CHECK(seal.Apply(text.data(), text.size(), tag.data()).ok());
  return Hex(tag.data(), tag.size());
}

using Block = std::array<uint8_t, 16>;

Block Unhex(const std::string& text) {
  Block block{};
  for (size_t at = 0; at < block.size(); ++at)
    block[at] = static_cast<uint8_t>(std::stoi(text.substr(2 * at, 2), nullptr, 16));
  return block;
}

/// GHASH of NIST SP 800-38D bit by bit, of bytes that are authenticated only.
Block Ghash(const Block& h, const std::string& clear) {
  Block sum{};
  const auto add = [&](const Block& block) {
    Block product{};
    Block factor = h;
    for (size_t at = 0; at < 16; ++at) sum[at] ^= block[at];
    for (size_t bit = 0; bit < 128; ++bit) {
      if ((sum[bit / 8] >> (7 - bit % 8) & 1) != 0)
        for (size_t at = 0; at < 16; ++at) product[at] ^= factor[at];
      const bool odd = (factor[15] & 1) != 0;
      for (size_t at = 15; at > 0; --at)
        factor[at] = static_cast<uint8_t>(factor[at] >> 1 | factor[at - 1] << 7);
      factor[0] = static_cast<uint8_t>(factor[0] >> 1 ^ (odd ? 0xe1 : 0));
    }
    sum = product;
  };
  for (size_t at = 0; at < clear.size(); at += 16) {
    Block block{};
    clear.copy(reinterpret_cast<char*>(block.data()), 16, at);
    add(block);
  }
  Block lengths{};
  for (int at = 0; at < 8; ++at)
    lengths[at] = static_cast<uint8_t>(clear.size() * 8 >> (56 - 8 * at));
  add(lengths);
  return sum;
}

/// One way of an attacker with the frames of a connection; what still arrives, of the frames that
/// were sent, before the receiver notices.
struct Attack {
  const char* name;
  std::function<std::string(const std::vector<std::string>& sent, const std::string& back,
                            const std::string& other)>
      wire;
  size_t arrive;
  bool noticed;
};

const std::vector<Attack>& Attacks() {
  using Frames = std::vector<std::string>;
  static const std::vector<Attack> all = {
      {"nothing", [](const Frames& f, auto&, auto&) { return f[0] + f[1] + f[2]; }, 3, false},
      {"repeats", [](const Frames& f, auto&, auto&) { return f[0] + f[0]; }, 1, true},
      {"repeats later", [](const Frames& f, auto&, auto&) { return f[0] + f[1] + f[0]; }, 2, true},
      {"reorders", [](const Frames& f, auto&, auto&) { return f[1] + f[0] + f[2]; }, 0, true},
      {"leaves out", [](const Frames& f, auto&, auto&) { return f[0] + f[2]; }, 1, true},
      {"cuts", [](const Frames& f, auto&, auto&) { return f[0] + f[1].substr(0, 90); }, 1, false},
      {"sends back", [](const Frames&, auto& back, auto&) { return back; }, 0, true},
      {"takes another connection's", [](const Frames&, auto&, auto& other) { return other; }, 0,
       true},
      {"joins two frames",
       [](const Frames& f, auto&, auto&) { return f[0].substr(0, 48) + f[1].substr(48); }, 0, true},
  };
  return all;
}

struct Wire : SocketPair {
  std::string Drain() const {
    std::string all(1 << 16, '\0');
    all.resize(static_cast<size_t>(
        std::max<ssize_t>(::recv(far.get(), all.data(), all.size(), MSG_DONTWAIT), 0)));
    return all;
  }
  /// The last that is sent.
  void Carry(const std::string& text) {
    CHECK_EQ(::send(near.get(), text.data(), text.size(), 0), text.size());
    near = Fd();
  }
};

/// What a receiver made of bytes.
struct Outcome {
  std::vector<std::string> messages;
  std::string error;
  bool partial = false;
};

/// A layer that sends messages as frames: the control links' and rendezvous', and the data links'.
struct Layer {
  const char* name;
  std::function<std::vector<std::string>(const Sealing&, const Digest&,
                                         const std::vector<std::string>&)>
      send;
  std::function<Outcome(const Sealing&, const Digest&, const std::string&)> receive;
};

std::vector<std::string> SendFrames(const Sealing& sealing, const Digest& key,
                                    const std::vector<std::string>& messages) {
  FrameWriter writer(7, sealing.tag_bytes());
  const Wire wire;
  std::vector<std::string> frames;
  for (const std::string& message : messages) {
    writer.Queue(5, BytesOf(message));
    if (frames.empty()) writer.Use(MakeSeal(sealing, key, Seal::End::kSend));
    CHECK(writer.FlushTo(wire.near.get()).value());
    frames.push_back(wire.Drain());
  }
  return frames;
}

Outcome ReceiveFrames(const Sealing& sealing, const Digest& key, const std::string& raw) {
  Wire wire;
  wire.Carry(raw);
  FrameReader reader(7, 1000, MakeSeal(sealing, key, Seal::End::kReceive));
  CHECK(reader.FillFrom(wire.far.get()).ok());
  Outcome outcome;
  for (;;) {
    const auto frame = reader.Next();
    if (!frame.ok()) outcome.error = frame.error().message;
    if (!frame.ok() || !frame.value()) break;
    CHECK_EQ(frame.value()->kind, 5U);
    outcome.messages.push_back(TextOf(frame.value()->bytes));
  }
  outcome.partial = reader.partial();
  return outcome;
}

/// Notices and stripes in turn: an even message is a notice, an odd one is data.
std::vector<std::string> SendStream(const Sealing& sealing, const Digest& key,
                                    const std::vector<std::string>& messages) {
  Wire wire;
  TcpTraffic traffic;
  SocketCounters counters;
  TcpStream stream(
      std::move(wire.near), 3, false, traffic, counters,
      {MakeSeal(sealing, key, Seal::End::kSend), MakeSeal(sealing, key, Seal::End::kReceive)});
  Outbound outbound;
  OutboundLink* const link = outbound.Open({{2, 8}, 1}).value();
  std::vector<std::string> frames;
  for (size_t at = 0; at < messages.size(); ++at) {
    if (at % 2 == 0) {
      DataHeader header;
      header.kind = DataKind::kAbort;
      CHECK(stream.Queue(header, messages[at]).ok());
    } else {
      const auto bytes = std::as_bytes(std::span(messages[at]));
      outbound.Post(*link, std::array{bytes.first(1), bytes.subspan(1)});
      CHECK(stream.Fill(outbound, 1).value());
      CHECK_EQ(stream.Reads(link), !MakeSeal(sealing, key, Seal::End::kSend).encrypts());
    }
    CHECK(stream.Flush().value());
    frames.push_back(wire.Drain());
  }
  return frames;
}

struct Listener final : FrameReceiver {
  Result<std::shared_ptr<InboundMessage>> OnStripe(const DataHeader& stripe) override {
    return inbound.Take(stripe);
  }
  Status OnNotice(const DataHeader& /*header*/, std::string_view text) override {
    notices.emplace_back(text);
    return {};
  }
  Inbound inbound{5};
  std::vector<std::string> notices;
};

Outcome ReceiveStream(const Sealing& sealing, const Digest& key, const std::string& raw) {
  Wire wire;
  wire.Carry(raw);
  TcpTraffic traffic;
  SocketCounters counters;
  TcpStream stream(
      std::move(wire.far), 3, false, traffic, counters,
      {MakeSeal(sealing, key, Seal::End::kSend), MakeSeal(sealing, key, Seal::End::kReceive)});
  Listener listener;
  InboundLink* const link = listener.inbound.Open({{2, 8}, 5, 1, 4, 1000}).value();
  std::string got(60, '\0');
  const auto room = std::as_writable_bytes(std::span(got));
  CHECK(link->Expect(got.size(), std::array{room.first(7), room.subspan(7)}).ok());
  Outcome outcome;
  for (bool open = true; open;) {
    const auto read = stream.Read(listener);
    if (!read.ok()) outcome.error = read.error().message;
    open = read.ok() && read.value();
  }
  outcome.messages = listener.notices;
  if (link->Arrived().value() != nullptr)
    outcome.messages.insert(outcome.messages.begin() + 1, got);
  outcome.partial = stream.partial();
  return outcome;
}

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> all = {{"messages", SendFrames, ReceiveFrames},
                                         {"streams", SendStream, ReceiveStream}};
  return all;
}

const std::vector<std::string> kMessages = {std::string(33, 'a'), std::string(60, 'b'),
                                            std::string(100, 'c')};

std::string Joined(const std::vector<std::string>& frames) {
  std::string all;
  for (const std::string& frame : frames) all += frame;
  return all;
}

/// What all ranks agree on, as they say it, or the error that all of them get.
std::vector<std::string> Agree(const std::vector<Settings>& settings) {
  const int size = static_cast<int>(settings.size());
  const auto hub = std::move(InprocHub::Create(size, 4096, 4096)).value();
  std::vector<std::string> said(settings.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto bootstrap = hub->MakeBootstrap(rank);
      const auto agreed = AgreeOnSealing(settings[rank], *bootstrap,
                                         Log(rank, LogLevel::kFatal, true), NowNs() + 20 * kSecond);
      static constexpr const char* kNames[] = {"none", "hmac", "gmac", "gcm"};
      said[rank] =
          agreed.ok() ? kNames[static_cast<int>(agreed.value().kind)] : agreed.error().message;
    });
  }
  threads.clear();
  return said;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(SealsAreThoseOfTheStandards) {
  // Test cases 13 and 14 of the GCM specification; test case 16 is part of Libcrypto::Load.
  std::string empty;
  CHECK_EQ(TagOf(SealKind::kGcm, {}, empty), "530f8afbc74536b9a963b4f1c4cb738b");
  std::string zeroes(16, '\0');
  CHECK_EQ(TagOf(SealKind::kGcm, {}, zeroes), "d0d1c8a799996bf0265b98b5d48ab919");
  CHECK_EQ(Hex(zeroes.data(), zeroes.size()), "cea7403d4d606b6e074ec5d3baf39d18");
  // The same key over bytes that stay readable: H and E(K, Y0) are those of test case 13.
  for (const size_t length : {1, 15, 16, 17, 64, 1000}) {
    const std::string text(length, 'x');
    Block expected = Ghash(Unhex("dc95c078a2408989ad48a21492842087"), text);
    const Block mask = Unhex("530f8afbc74536b9a963b4f1c4cb738b");
    for (size_t at = 0; at < 16; ++at) expected[at] ^= mask[at];
    std::string read = text;
    CHECK_EQ(TagOf(SealKind::kGmac, {}, read), Hex(expected.data(), expected.size()));
    CHECK_EQ(read, text);
    const Digest whole = HmacSha256(std::string(32, '\0'), std::string(8, '\0') + text);
    CHECK_EQ(TagOf(SealKind::kHmac, {}, read), Hex(whole.data(), 16));
  }
}

TEST(EveryDirectionOfEveryConnectionHasAKeyOfItsOwn) {
  const HandshakeTerms low{"secret", LinkPurpose::kControl, 7, 1, 4};
  const HandshakeTerms high{"secret", LinkPurpose::kControl, 7, 2, 4};
  const ConnectionKeys keys = Shake(low, high);
  CHECK(SameDigest(keys.dial.send, keys.accept.receive));
  CHECK(SameDigest(keys.dial.receive, keys.accept.send));
  CHECK(!SameDigest(keys.dial.send, keys.dial.receive));
  const ConnectionKeys again = Shake(low, high);
  CHECK(!SameDigest(keys.dial.send, again.dial.send));
  // Without a handshake: of the secret, the epoch, and both ranks.
  const Digest key = KeyOfRanks("secret", 7, 1, 2);
  for (const Digest& other : {KeyOfRanks("other", 7, 1, 2), KeyOfRanks("secret", 8, 1, 2),
                              KeyOfRanks("secret", 7, 2, 1), KeyOfRanks("secret", 71, 2, 2)})
    CHECK(!SameDigest(key, other));
}

TEST(AnAttackerOnTheWayIsNoticed) {
  for (const Layer& layer : Layers()) {
    for (const Sealing& sealing : AllSealings()) {
      const ConnectionKeys keys = Shake();
      const auto sent = layer.send(sealing, keys.dial.send, kMessages);
      const auto back = layer.send(sealing, keys.accept.send, kMessages);
      const auto other = layer.send(sealing, Shake().dial.send, kMessages);
      for (const Attack& attack : Attacks()) {
        const Outcome outcome = layer.receive(sealing, keys.accept.receive,
                                              attack.wire(sent, Joined(back), Joined(other)));
        const std::string who = std::string(layer.name) + ": an attacker " + attack.name;
        CHECK_EQ(who + " " + std::to_string(outcome.messages.size()),
                 who + " " + std::to_string(attack.arrive));
        for (size_t at = 0; at < outcome.messages.size(); ++at)
          CHECK_EQ(outcome.messages[at], kMessages[at]);
        CHECK_EQ(who + " " + (outcome.error.empty() ? "unnoticed" : "noticed"),
                 who + " " + (attack.noticed ? "noticed" : "unnoticed"));
        if (attack.noticed) CHECK(Has(outcome.error, "forged"));
        // The end of a connection within a frame is an error of the layer above.
        if (attack.arrive == 1 && !attack.noticed) CHECK(outcome.partial);
      }
    }
  }
}

TEST(EveryBitOfEveryFrameIsSealed) {
  for (const Layer& layer : Layers()) {
    for (const Sealing& sealing : AllSealings()) {
      const ConnectionKeys keys = Shake();
      const auto frames = layer.send(sealing, keys.dial.send, kMessages);
      const std::string raw = Joined(frames);
      // What a stream sends from the program's memory: of the second frame, with its tag.
      const size_t lent_end = frames[0].size() + frames[1].size();
      const size_t lent_begin = lent_end - kMessages[1].size() - Sealing::kTagBytes;
      const bool lends = &layer == &Layers().back() && sealing.kind != SealKind::kGcm;
      for (const std::string& message : kMessages)
        CHECK_EQ(Has(raw, message.substr(1)), sealing.kind != SealKind::kGcm);
      for (size_t bit = 0; bit < 8 * raw.size(); ++bit) {
        std::string changed = raw;
        changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
        const Outcome outcome = layer.receive(sealing, keys.accept.receive, changed);
        CHECK(Has(outcome.error, "forged"));
        CHECK_EQ(Has(outcome.error, "changed by the sender while they were sent"),
                 lends && bit / 8 >= lent_begin && bit / 8 < lent_end);
        CHECK(outcome.messages.size() < kMessages.size());
        for (size_t at = 0; at < outcome.messages.size(); ++at)
          CHECK_EQ(outcome.messages[at], kMessages[at]);
      }
    }
  }
}

TEST(StripesOfAClosedLinkAreDroppedAndWhatFollowsIsRead) {
  for (const Sealing& sealing : AllSealings()) {
    const ConnectionKeys keys = Shake();
    const auto sent = SendStream(sealing, keys.dial.send, kMessages);
    Wire wire;
    wire.Carry(Joined(sent));
    TcpTraffic traffic;
    SocketCounters counters;
    TcpStream stream(std::move(wire.far), 3, false, traffic, counters,
                     {MakeSeal(sealing, keys.accept.send, Seal::End::kSend),
                      MakeSeal(sealing, keys.accept.receive, Seal::End::kReceive)});
    Listener listener;
    listener.inbound.Close(listener.inbound.Open({{2, 8}, 5, 1, 4, 1000}).value());
    while (stream.Read(listener).value()) continue;
    CHECK_EQ(listener.notices.size(), 2);
    CHECK_EQ(listener.notices[1], kMessages[2]);
  }
}

TEST(FramesWaitForTheKeyOfTheirConnection) {
  for (const Sealing& sealing : AllSealings()) {
    FrameWriter writer(7, sealing.tag_bytes());
    Wire wire;
    writer.Queue(5, BytesOf("early"));
    CHECK(!writer.FlushTo(wire.near.get()).ok());
    // A first connection closed before anything was sent.
    writer.Use(MakeSeal(sealing, Shake().dial.send, Seal::End::kSend));
    const ConnectionKeys keys = Shake();
    writer.Use(MakeSeal(sealing, keys.dial.send, Seal::End::kSend));
    CHECK(writer.FlushTo(wire.near.get()).value());
    const Outcome outcome = ReceiveFrames(sealing, keys.accept.receive, wire.Drain());
    CHECK_EQ(outcome.error, "");
    CHECK_EQ(outcome.messages.at(0), "early");
  }
}

TEST(AWrongLibraryIsToldApart) {
  CHECK(Libcrypto::Load("").ok());
  const auto error = [](const char* path) { return Libcrypto::Load(path).error().message; };
  CHECK(Has(error("/nowhere/libcrypto.so"), "no libcrypto: /nowhere/libcrypto.so"));
  CHECK(Has(error("libm.so.6"), "libm.so.6 is no libcrypto: it has no EVP_CIPHER_CTX_new"));
  CHECK(Has(error(WRONG_LIBCRYPTO), "(a wrong libcrypto) does not compute AES-256-GCM"));
}

TEST(AllRanksAgreeOnTheirSeals) {
  struct Case {
    LinkMac mac;
    bool encrypt;
    bool first, second;  ///< has a libcrypto
    const char* expected;
  };
  const char* const kSome =
      "rank(s) 1 cannot seal by AES-GCM what goes between hosts, and others "
      "can: no libcrypto: /nowhere";
  const Case cases[] = {
      {LinkMac::kAuto, false, true, true, "gmac"},
      {LinkMac::kAuto, false, false, false, "hmac"},
      {LinkMac::kAuto, false, true, false, kSome},
      {LinkMac::kAuto, true, true, true, "gcm"},
      {LinkMac::kAuto, true, false, false, "rank(s) 0, 1 cannot seal by AES-GCM"},
      {LinkMac::kAesGcm, false, true, true, "gmac"},
      {LinkMac::kAesGcm, false, false, true, "rank(s) 0 cannot seal by AES-GCM"},
      {LinkMac::kAesGcm, true, true, true, "gcm"},
      {LinkMac::kHmacSha256, false, true, false, "hmac"},
      {LinkMac::kNone, false, false, true, "none"},
      {LinkMac::kHmacSha256, true, true, true, "setting 'encrypt' needs AES-GCM"},
      {LinkMac::kNone, true, true, true, "setting 'encrypt' needs AES-GCM"},
  };
  for (const Case& one : cases) {
    std::vector<Settings> settings(2);
    for (int rank = 0; rank < 2; ++rank) {
      settings[rank].link_mac = one.mac;
      settings[rank].encrypt = one.encrypt;
      if (!(rank == 0 ? one.first : one.second)) settings[rank].crypto_library = "/nowhere";
    }
    for (const std::string& said : Agree(settings))
      CHECK_EQ(said.substr(0, std::strlen(one.expected)), std::string(one.expected));
  }
}
