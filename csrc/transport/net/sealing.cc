#include "transport/net/sealing.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <string_view>
#include <utility>

namespace horoacc {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr size_t kNonceBytes = 12;

std::string_view View(const void* bytes, size_t count) {
  return {static_cast<const char*>(bytes), count};
}

}  // namespace

Digest KeyOfRanks(const std::string& secret, uint64_t epoch, int sender, int receiver) {
  return HmacSha256(secret, "horoacc rank key " + std::to_string(epoch) + " " +
                                std::to_string(sender) + " " + std::to_string(receiver));
}

Result<Seal> Seal::Make(const Sealing& sealing, const Digest& key, End end) {
  Seal seal;
  seal.kind_ = sealing.kind;
  seal.end_ = end;
  if (sealing.kind == SealKind::kHmac) seal.hmac_.emplace(View(key.data(), key.size()));
  if (sealing.kind == SealKind::kNone || sealing.kind == SealKind::kHmac) return seal;
  seal.library_ = sealing.library.value();
  const Libcrypto& library = seal.library_;
  seal.context_ = {library.make(), Free{library.free}};
  if (!seal.context_ || library.init(seal.context_.get(), library.aes_256_gcm(), nullptr,
                                     key.data(), nullptr, end == End::kSend ? 1 : 0) != 1)
    return MakeError(ErrorKind::kSystem, "libcrypto has no AES-256-GCM");
  return seal;
}

void Seal::Begin() {
  const uint64_t number = number_++;
  failed_ = false;
  if (hmac_) {
    hmac_->Begin();
    return hmac_->Update(View(&number, sizeof(number)));
  }
  unsigned char nonce[kNonceBytes] = {};
  std::memcpy(nonce, &number, sizeof(number));
  failed_ = library_.init(context_.get(), nullptr, nullptr, nullptr, nonce, -1) != 1;
}

void Seal::Update(const void* from, void* to, size_t bytes) {
  if (hmac_) return hmac_->Update(View(from, bytes));
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = encrypts() ? static_cast<unsigned char*>(to) : nullptr;
  while (bytes > 0) {
    const int part = static_cast<int>(std::min<size_t>(bytes, INT_MAX / 2));
    int done = 0;
    failed_ |= library_.update(context_.get(), target, &done, source, part) != 1;
    source += part;
    if (target != nullptr) target += part;
    bytes -= static_cast<size_t>(part);
  }
}

Status Seal::Finish(std::byte* tag) {
  bool right = !failed_;
  if (hmac_) {
    Digest digest = hmac_->Finish();
    if (end_ == End::kSend) {
      std::memcpy(tag, digest.data(), Sealing::kTagBytes);
    } else {
      Digest theirs = digest;
      std::memcpy(theirs.data(), tag, Sealing::kTagBytes);
      right = SameDigest(digest, theirs);
    }
  } else {
    unsigned char rest[16];
    int length = 0;
    Libcrypto::Context* const context = context_.get();
    if (end_ == End::kReceive)
      right =
          right && library_.control(context, Libcrypto::kSetTag, Libcrypto::kTagBytes, tag) == 1;
    right = right && library_.finish(context, rest, &length) == 1;
    if (end_ == End::kSend)
      right =
          right && library_.control(context, Libcrypto::kGetTag, Libcrypto::kTagBytes, tag) == 1;
  }
  if (right) return {};
  return MakeError(ErrorKind::kSystem, end_ == End::kSend ? "libcrypto could not seal a frame"
                                                          : "damaged on its way, or forged");
}

}  // namespace horoacc
