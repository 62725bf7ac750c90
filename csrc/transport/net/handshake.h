#pragma once
// How two ends of a new connection prove to each other that they know the job's secret, before
// either reads anything else from it. Both choose a nonce; each proof is an HMAC over both
// greetings and its own side, so that no proof can be replayed or reflected.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "transport/net/sealing.h"

namespace horoacc {

/// The purpose of a connection; part of the proof, so that one port cannot be used for another.
enum class LinkPurpose : uint32_t { kRendezvous = 1, kControl = 2, kHost = 3, kData = 4 };

/// "the rendezvous", for a person.
[[nodiscard]] const char* NameOf(LinkPurpose purpose);

struct HandshakeTerms {
  std::string secret;
  LinkPurpose purpose = LinkPurpose::kRendezvous;
  uint64_t epoch = 0;
  int rank = 0;  ///< this end's
  int size = 1;
};

/// One connection's handshake as a state machine without a socket. Until done: send the output of
/// TakeOutput, read exactly `wanted` bytes, feed them.
class Handshake {
 public:
  enum class Side : uint8_t { kDial = 1, kAccept = 2 };

  /// `terms` must outlive the handshake.
  static Result<Handshake> Start(const HandshakeTerms& terms, Side side);

  [[nodiscard]] size_t wanted() const { return wanted_; }
  [[nodiscard]] std::string TakeOutput();
  /// `bytes.size()` must be wanted(). An error means: close the connection.
  Status Feed(std::string_view bytes);
  /// Both proofs are good. The output of TakeOutput must still be sent.
  [[nodiscard]] bool done() const { return done_; }
  /// Known to be true only once done.
  [[nodiscard]] int peer_rank() const { return peer_rank_; }
  [[nodiscard]] int peer_size() const { return peer_size_; }
  /// Of this end, once done. They belong to the secret, the epoch, the purpose, both ranks, the
  /// direction and, by the nonces of both ends, this connection alone.
  [[nodiscard]] LinkKeys keys() const;

 private:
  Handshake(const HandshakeTerms& terms, Side side) : terms_(&terms), side_(side) {}
  Status TakeGreeting(std::string_view bytes);
  [[nodiscard]] Digest DigestOf(std::string_view what, Side side) const;
  [[nodiscard]] Side peer_side() const {
    return side_ == Side::kDial ? Side::kAccept : Side::kDial;
  }
  [[nodiscard]] std::string ProofOf(Side side) const;

  const HandshakeTerms* terms_;
  Side side_;
  std::string greeting_;       ///< ours
  std::string peer_greeting_;  ///< empty until it came
  std::string output_;
  size_t wanted_ = 0;
  bool done_ = false;
  int peer_rank_ = -1;
  int peer_size_ = -1;
};

/// `count` unpredictable bytes.
Result<std::string> RandomBytes(size_t count);

}  // namespace horoacc
