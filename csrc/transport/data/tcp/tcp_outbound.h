#pragma once
// Outgoing messages to one peer, cut into stripes, and credits.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/data/data_frame.h"

namespace horoacc {

/// The sending end of a link.
class OutboundLink {
 public:
  explicit OutboundLink(LinkKey key) : key_(key) {}

  [[nodiscard]] const LinkKey& key() const { return key_; }
  void Post(uint64_t number, SendPieces pieces);
  [[nodiscard]] uint64_t posted() const { return posted_; }
  [[nodiscard]] uint64_t taken() const { return taken_; }
  /// Whether a part of a message is not handed to a stream yet.
  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }

 private:
  friend class Outbound;
  struct Message {
    uint64_t number = 0;
    uint64_t total = 0;
    uint64_t sent = 0;  ///< bytes whose stripes were handed to streams
    std::vector<std::span<const std::byte>> pieces;
  };
  const LinkKey key_;
  uint64_t posted_ = 0;
  uint64_t taken_ = 0;
  bool queued_ = false;
  std::deque<Message> waiting_;  ///< messages with stripes that no stream has
};

/// A stripe or a credit, for a stream.
struct OutboundFrame {
  DataHeader header;
  const OutboundLink* link = nullptr;  ///< of the payload; nullptr for a credit
};

class Outbound {
 public:
  /// A longer stripe would delay other links.
  static constexpr uint64_t kLongestStripe = 1 << 20;

  /// kInvalid if the link is open already.
  Result<OutboundLink*> Open(const LinkKey& key);
  void Close(OutboundLink* link);

  void Post(OutboundLink& link, SendPieces pieces);
  /// The peer has released `released` messages of a link. False if fewer were posted: then the
  /// frame belongs to no possible link.
  bool Credit(const LinkKey& key, uint64_t released);
  /// Queues a credit: how many of the peer's messages were released.
  void Owe(const LinkKey& key, uint64_t released) { credits_[key] = released; }
  /// Queues a request for more connections.
  void AskToWiden() { widen_ = true; }
  [[nodiscard]] bool empty() const { return credits_.empty() && ready_.empty() && !widen_; }
  /// Whether a link has posted a message that the peer has not released, and must be there for.
  [[nodiscard]] bool waiting() const;
  /// Whether there is a link.
  [[nodiscard]] bool used() const { return !links_.empty(); }
  /// The peer needs no more credits.
  void Forgive() {
    credits_.clear();
    widen_ = false;
  }

  /// The next frame: notices first, then a stripe of each link in turn. Appends the memory of its
  /// payload to `to`. `streams`: a message may be striped over so many connections.
  std::optional<OutboundFrame> Next(uint64_t epoch, int streams, std::vector<iovec>& to);

 private:
  std::map<LinkKey, std::unique_ptr<OutboundLink>> links_;
  std::deque<OutboundLink*> ready_;  ///< links with messages that wait
  std::map<LinkKey, uint64_t> credits_;
  bool widen_ = false;
};

}  // namespace horoacc
