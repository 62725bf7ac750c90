#include "transport/net/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace horoacc {
namespace {

/// FIPS 180-4, section 4.2.2.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

std::string_view View(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::Compress(const uint8_t* block) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = BigEndian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += added[i];
}

void Sha256::Update(std::string_view bytes) {
  length_ += bytes.size();
  while (!bytes.empty()) {
    if (filled_ == 0 && bytes.size() >= block_.size()) {  // without a copy
      Compress(reinterpret_cast<const uint8_t*>(bytes.data()));
      bytes.remove_prefix(block_.size());
      continue;
    }
    const size_t take = std::min(bytes.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), take);
    filled_ += take;
    bytes.remove_prefix(take);
    if (filled_ == block_.size()) {
      Compress(block_.data());
      filled_ = 0;
    }
  }
}

Digest Sha256::Finish() {
  const uint64_t bits = length_ * 8;
  const char padding[64] = {'\x80'};
  Update({padding, 1 + (119 - filled_) % 64});
  char tail[8];
  for (int i = 0; i < 8; ++i) tail[i] = static_cast<char>(bits >> (56 - 8 * i));
  Update({tail, sizeof(tail)});
  Digest digest;
  for (int i = 0; i < 32; ++i)
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Hmac::Hmac(std::string_view key) {
  Digest hashed_key;
  if (key.size() > 64) {
    Sha256 hash;
    hash.Update(key);
    hashed_key = hash.Finish();
    key = View(hashed_key);
  }
  std::string inner_pad(64, '\x36');
  std::string outer_pad(64, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner_pad[i] = static_cast<char>(inner_pad[i] ^ key[i]);
    outer_pad[i] = static_cast<char>(outer_pad[i] ^ key[i]);
  }
  inner_.Update(inner_pad);
  outer_.Update(outer_pad);
}

Digest Hmac::Finish() {
  const Digest digest = hash_.Finish();
  Sha256 outer = outer_;
  outer.Update(View(digest));
  return outer.Finish();
}

Digest HmacSha256(std::string_view key, std::string_view text) {
  Hmac hmac(key);
  hmac.Begin();
  hmac.Update(text);
  return hmac.Finish();
}

bool SameDigest(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace horoacc
