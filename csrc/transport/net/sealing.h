#pragma once
// A seal on what goes between hosts: a tag over bytes that only an owner of the connection's key
// can make, and, if the job encrypts, the bytes hidden. Each direction of each connection has a key
// of its own (Handshake::keys), and seals are numbered: bytes that were changed, left out,
// repeated, brought out of order or sent back do not open.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "transport/net/libcrypto.h"
#include "transport/net/sha256.h"

namespace horoacc {

/// How the ranks of a job seal, all of them alike.
enum class SealKind : uint8_t {
  kNone,
  kHmac,  ///< HMAC-SHA256, its first 128 bits
  kGmac,  ///< AES-256-GCM over bytes that stay readable
  kGcm,   ///< AES-256-GCM, encrypted
};

struct Sealing {
  SealKind kind = SealKind::kNone;
  std::optional<Libcrypto> library{};  ///< of kGmac and kGcm

  [[nodiscard]] size_t tag_bytes() const { return kind == SealKind::kNone ? 0 : kTagBytes; }
  static constexpr size_t kTagBytes = Libcrypto::kTagBytes;
};

/// The keys of one end of a connection.
struct LinkKeys {
  Digest send{};
  Digest receive{};
};

/// The key from one rank to another where no handshake gives one: in messages over MPI.
[[nodiscard]] Digest KeyOfRanks(const std::string& secret, uint64_t epoch, int sender,
                                int receiver);

/// One direction of a connection, at its sending or its receiving end. Seals or opens pieces of
/// bytes one after another: Begin, Update as often as needed, Finish.
class Seal {
 public:
  enum class End : uint8_t { kSend, kReceive };
  using Tag = std::array<std::byte, Sealing::kTagBytes>;

  Seal() = default;  ///< of SealKind::kNone
  static Result<Seal> Make(const Sealing& sealing, const Digest& key, End end);

  [[nodiscard]] bool on() const { return kind_ != SealKind::kNone; }
  /// Whether Update writes.
  [[nodiscard]] bool encrypts() const { return kind_ == SealKind::kGcm; }

  void Begin();
  /// `to` may be `from`; it is written only if the seal encrypts. What the receiving end writes may
  /// be used only after Finish.
  void Update(const void* from, void* to, size_t bytes);
  /// The sending end writes the tag; the receiving end compares it: kSystem if it is wrong.
  Status Finish(std::byte* tag);
  /// All in one, in place.
  Status Apply(void* bytes, size_t length, std::byte* tag) {
    Begin();
    Update(bytes, bytes, length);
    return Finish(tag);
  }

 private:
  struct Free {
    void (*free)(Libcrypto::Context*);
    void operator()(Libcrypto::Context* context) const { free(context); }
  };

  SealKind kind_ = SealKind::kNone;
  End end_ = End::kSend;
  uint64_t number_ = 0;  ///< of the next seal
  bool failed_ = false;  ///< a call of the library, since Begin
  std::optional<Hmac> hmac_;
  Libcrypto library_;
  std::unique_ptr<Libcrypto::Context, Free> context_{nullptr, Free{nullptr}};
};

}  // namespace horoacc
