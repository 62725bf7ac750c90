#pragma once
// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for proving the job's secret.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace horoacc {

using Digest = std::array<uint8_t, 32>;

/// Hashes a text in pieces.
class Sha256 {
 public:
  Sha256();
  void Update(std::string_view bytes);
  /// The digest of everything so far; the object is spent afterwards.
  [[nodiscard]] Digest Finish();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t length_ = 0;
};

/// HMAC-SHA256 of texts with one key, each in pieces.
class Hmac {
 public:
  explicit Hmac(std::string_view key);
  void Begin() { hash_ = inner_; }
  void Update(std::string_view bytes) { hash_.Update(bytes); }
  /// Of everything since Begin, which comes next.
  [[nodiscard]] Digest Finish();

 private:
  Sha256 inner_;  ///< after the key's block
  Sha256 outer_;  ///< after the key's other block
  Sha256 hash_;
};

[[nodiscard]] Digest HmacSha256(std::string_view key, std::string_view text);

/// In constant time, so that a peer cannot guess the digest byte by byte.
[[nodiscard]] bool SameDigest(const Digest& a, const Digest& b);

}  // namespace horoacc
