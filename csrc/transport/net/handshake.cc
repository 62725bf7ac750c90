#include "transport/net/handshake.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/net/sha256.h"

namespace horoacc {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t kGreetingMagic = 0x43434148;  // "HACC"
constexpr uint32_t kVersion = 3;
constexpr size_t kGreetingNonce = 32;

struct Greeting {
  uint32_t magic;
  uint32_t version;
  uint32_t purpose;
  int32_t rank;
  int32_t size;
  uint32_t reserved;
  uint64_t epoch;
  char nonce[kGreetingNonce];
};
static_assert(sizeof(Greeting) == 64);

}  // namespace

const char* NameOf(LinkPurpose purpose) {
  switch (purpose) {
    case LinkPurpose::kRendezvous:
      return "the rendezvous";
    case LinkPurpose::kControl:
      return "the port of the control links";
    case LinkPurpose::kHost:
      return "the socket of the host's ranks";
    case LinkPurpose::kData:
      return "the port of the data links";
  }
  return "an unknown port";
}

Result<std::string> RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t got = 0; got < count;) {
    const ssize_t more = ::getrandom(bytes.data() + got, count - got, 0);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return SystemError("getrandom");
    got += static_cast<size_t>(more);
  }
  return bytes;
}

Result<Handshake> Handshake::Start(const HandshakeTerms& terms, Side side) {
  Handshake handshake(terms, side);
  HA_ASSIGN(const std::string nonce, RandomBytes(kGreetingNonce));
  Greeting greeting{kGreetingMagic, kVersion,   static_cast<uint32_t>(terms.purpose),
                    terms.rank,     terms.size, 0,
                    terms.epoch,    {}};
  std::memcpy(greeting.nonce, nonce.data(), kGreetingNonce);
  handshake.greeting_.assign(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  handshake.wanted_ = sizeof(Greeting);
  if (side == Side::kDial) handshake.output_ = handshake.greeting_;
  return handshake;
}

std::string Handshake::TakeOutput() { return std::exchange(output_, {}); }

Digest Handshake::DigestOf(std::string_view what, Side side) const {
  std::string text(what);
  text += static_cast<char>(side);
  text += side_ == Side::kDial ? greeting_ : peer_greeting_;
  text += side_ == Side::kDial ? peer_greeting_ : greeting_;
  return HmacSha256(terms_->secret, text);
}

std::string Handshake::ProofOf(Side side) const {
  const Digest digest = DigestOf("horoacc handshake", side);
  return {digest.begin(), digest.end()};
}

LinkKeys Handshake::keys() const {
  return {DigestOf("horoacc link key", side_), DigestOf("horoacc link key", peer_side())};
}

Status Handshake::TakeGreeting(std::string_view bytes) {
  Greeting greeting;
  std::memcpy(&greeting, bytes.data(), sizeof(greeting));
  if (greeting.magic != kGreetingMagic) {
    return MakeError(ErrorKind::kConfig, "the other end does not speak HoroACC's protocol");
  }
  if (greeting.version != kVersion) {
    return MakeError(ErrorKind::kConfig,
                     "the other end speaks version " + std::to_string(greeting.version) +
                         " of the protocol, this one " + std::to_string(kVersion));
  }
  if (greeting.purpose != static_cast<uint32_t>(terms_->purpose)) {
    return MakeError(ErrorKind::kConfig, "the connection was meant for another port of the job");
  }
  if (greeting.epoch != terms_->epoch) {
    return MakeError(ErrorKind::kConfig, "the other end is at epoch " +
                                             std::to_string(greeting.epoch) + ", this one at " +
                                             std::to_string(terms_->epoch));
  }
  peer_rank_ = greeting.rank;
  peer_size_ = greeting.size;
  peer_greeting_ = bytes;
  return {};
}

Status Handshake::Feed(std::string_view bytes) {
  if (bytes.size() != wanted_ || wanted_ == 0) {
    return MakeError(ErrorKind::kInvalid, "the handshake expected other bytes");
  }
  if (peer_greeting_.empty()) {
    HA_TRY(TakeGreeting(bytes));
    // The dialer proves first, so that unauthenticated peers get no proof to attack.
    output_ += side_ == Side::kDial ? ProofOf(Side::kDial) : greeting_;
    wanted_ = sizeof(Digest);
    return {};
  }
  const std::string expected = ProofOf(peer_side());
  Digest theirs;
  Digest ours;
  std::memcpy(theirs.data(), bytes.data(), theirs.size());
  std::memcpy(ours.data(), expected.data(), ours.size());
  if (!SameDigest(theirs, ours)) {
    return MakeError(ErrorKind::kConfig, "the other end does not know the job's secret");
  }
  if (side_ == Side::kAccept) output_ += ProofOf(Side::kAccept);
  wanted_ = 0;
  done_ = true;
  return {};
}

}  // namespace horoacc
