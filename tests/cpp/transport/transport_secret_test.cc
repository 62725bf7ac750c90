// SHA-256, HMAC and the handshake that uses them.
#include <cstdio>
#include <string>

#include "support/check.h"
#include "transport/net/handshake.h"
#include "transport/net/sha256.h"

using namespace horoacc;

namespace {

std::string Hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    text += digits;
  }
  return text;
}

std::string HashOf(std::string_view text) {
  Sha256 hash;
  hash.Update(text);
  return Hex(hash.Finish());
}

HandshakeTerms Terms(int rank, const std::string& secret = "secret") {
  return {secret, LinkPurpose::kControl, 7, rank, 4};
}

Handshake Start(const HandshakeTerms& terms, Handshake::Side side) {
  return std::move(Handshake::Start(terms, side)).value();
}

/// Carries bytes between the two until both are done or one refuses; the refusal's text, or "".
std::string Converse(Handshake& a, Handshake& b) {
  for (int turn = 0; turn < 8 && !(a.done() && b.done()); ++turn) {
    Handshake& from = turn % 2 == 0 ? a : b;
    Handshake& to = turn % 2 == 0 ? b : a;
    const std::string bytes = from.TakeOutput();
    if (bytes.empty()) continue;
    if (bytes.size() != to.wanted()) return "unexpected length";
    const Status fed = to.Feed(bytes);
    if (!fed.ok()) return fed.error().message;
  }
  return "";
}

}  // namespace

TEST(Sha256OfTheStandardsExamples) {
  CHECK_EQ(HashOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(HashOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(HashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(HashOf(std::string(1000000, 'a')),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256InPiecesOfAnyLength) {
  std::string text;
  for (int index = 0; index < 300; ++index) text += static_cast<char>(index * 7);
  for (size_t length = 0; length <= text.size(); length += 13) {
    Sha256 hash;
    for (size_t at = 0; at < length; at += 17) {
      hash.Update(std::string_view(text).substr(at, std::min<size_t>(17, length - at)));
    }
    CHECK_EQ(Hex(hash.Finish()), HashOf(std::string_view(text).substr(0, length)));
  }
}

TEST(HmacOfRfc4231) {
  CHECK_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                          "Test Using Larger Than Block-Size Key - Hash Key First")),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HandshakeTellsBothWhoTheOtherIs) {
  const HandshakeTerms one = Terms(1);
  const HandshakeTerms three = Terms(3);
  Handshake dial = Start(one, Handshake::Side::kDial);
  Handshake accept = Start(three, Handshake::Side::kAccept);
  CHECK_EQ(Converse(dial, accept), std::string());
  CHECK(dial.done() && accept.done());
  CHECK_EQ(dial.peer_rank(), 3);
  CHECK_EQ(accept.peer_rank(), 1);
  CHECK_EQ(accept.peer_size(), 4);
}

TEST(HandshakeRefusesAnotherSecretPurposeOrEpoch) {
  HandshakeTerms other = Terms(1, "another");
  const HandshakeTerms right = Terms(2);
  const auto refusal = [&](const char* expected) {
    Handshake dial = Start(other, Handshake::Side::kDial);
    Handshake accept = Start(right, Handshake::Side::kAccept);
    const std::string text = Converse(dial, accept);
    CHECK(!dial.done());
    CHECK(!accept.done());
    if (text.find(expected) == std::string::npos) std::printf("refused with: %s\n", text.c_str());
    CHECK(text.find(expected) != std::string::npos);
  };
  refusal("secret");
  other = Terms(1);
  other.purpose = LinkPurpose::kHost;
  refusal("another port");
  other = Terms(1);
  other.epoch = 8;
  refusal("epoch 8, this one at 7");
}

TEST(HandshakeRefusesReflectionReplayAndGarbage) {
  const HandshakeTerms terms = Terms(1);
  // A unauthenticated peer that sends back what it hears: the proof would be for the other side.
  Handshake victim = Start(terms, Handshake::Side::kDial);
  const std::string greeting = victim.TakeOutput();
  CHECK(victim.Feed(greeting).ok());
  CHECK(!victim.Feed(victim.TakeOutput()).ok());
  CHECK(!victim.done());

  // A recorded conversation does not convince a new acceptor: its nonce is another.
  Handshake dial = Start(terms, Handshake::Side::kDial);
  Handshake accept = Start(terms, Handshake::Side::kAccept);
  const std::string hello = dial.TakeOutput();
  CHECK(accept.Feed(hello).ok());
  CHECK(dial.Feed(accept.TakeOutput()).ok());
  const std::string proof = dial.TakeOutput();
  Handshake later = Start(terms, Handshake::Side::kAccept);
  CHECK(later.Feed(hello).ok());
  CHECK(!later.Feed(proof).ok());
  CHECK(accept.Feed(proof).ok());

  Handshake garbled = Start(terms, Handshake::Side::kAccept);
  CHECK(!garbled.Feed(std::string(garbled.wanted(), 'x')).ok());
  CHECK(!garbled.Feed("short").ok());
}
