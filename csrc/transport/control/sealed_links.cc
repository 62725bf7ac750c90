#include "transport/control/sealed_links.h"

#include <algorithm>
#include <map>
#include <utility>

#include "transport/net/sealing.h"

namespace horoacc {
namespace {

struct Ends {
  Seal send;
  Seal receive;
  bool lost = false;
};

class SealedControlLinks final : public ControlLinks {
 public:
  SealedControlLinks(std::unique_ptr<ControlLinks> links, int rank, std::string secret,
                     uint64_t epoch)
      : links_(std::move(links)), rank_(rank), secret_(std::move(secret)), epoch_(epoch) {}

  Status Send(int peer, std::span<const std::byte> bytes) override {
    HA_ASSIGN(Ends* const ends, EndsTo(peer));
    message_.assign(bytes.begin(), bytes.end());
    message_.resize(bytes.size() + Sealing::kTagBytes);
    HA_TRY(ends->send.Apply(message_.data(), bytes.size(), message_.data() + bytes.size()));
    return links_->Send(peer, message_);
  }

  Result<std::optional<ControlMessage>> Receive() override {
    while (true) {
      HA_ASSIGN(std::optional<ControlMessage> message, links_->Receive());
      if (!message) return message;
      HA_ASSIGN(Ends* const ends, EndsTo(message->source));
      if (ends->lost) continue;
      std::vector<std::byte>& bytes = message->bytes;
      const size_t length = bytes.size() - std::min(bytes.size(), Sealing::kTagBytes);
      Seal::Tag tag{};  // of a message that is too short for one
      std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(length), bytes.end(), tag.begin());
      const Status right = ends->receive.Apply(bytes.data(), length, tag.data());
      if (!right.ok()) {
        ends->lost = true;
        const int peer = message->source;
        return MakeError(ErrorKind::kPeerLost,
                         "lost the control link to rank " + std::to_string(peer) +
                             ": a message was " + right.error().message,
                         peer);
      }
      bytes.resize(length);
      return message;
    }
  }

  void Hold() override { links_->Hold(); }
  void Flush() override { links_->Flush(); }
  [[nodiscard]] bool HasUnsent() override { return links_->HasUnsent(); }
  [[nodiscard]] std::vector<int> peers() const override { return links_->peers(); }
  [[nodiscard]] int WaitFd() const override { return links_->WaitFd(); }
  void LeaveToParent() override { links_->LeaveToParent(); }
  [[nodiscard]] const char* kind() const override { return links_->kind(); }
  [[nodiscard]] uint64_t messages_sent() const override { return links_->messages_sent(); }
  [[nodiscard]] uint64_t bytes_sent() const override { return links_->bytes_sent(); }

 private:
  Result<Ends*> EndsTo(int peer) {
    if (const auto known = ends_.find(peer); known != ends_.end()) return &known->second;
    const Sealing sealing{SealKind::kHmac};
    Ends made;
    HA_ASSIGN(made.send,
              Seal::Make(sealing, KeyOfRanks(secret_, epoch_, rank_, peer), Seal::End::kSend));
    HA_ASSIGN(made.receive,
              Seal::Make(sealing, KeyOfRanks(secret_, epoch_, peer, rank_), Seal::End::kReceive));
    return &ends_.emplace(peer, std::move(made)).first->second;
  }

  const std::unique_ptr<ControlLinks> links_;
  const int rank_;
  const std::string secret_;
  const uint64_t epoch_;
  std::map<int, Ends> ends_;
  std::vector<std::byte> message_;
};

}  // namespace

std::unique_ptr<ControlLinks> WithSeals(std::unique_ptr<ControlLinks> links, int rank,
                                        std::string secret, uint64_t epoch) {
  return std::make_unique<SealedControlLinks>(std::move(links), rank, std::move(secret), epoch);
}

}  // namespace horoacc
