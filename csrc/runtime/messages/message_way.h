#pragma once
// The two ways for a message's bytes, as the exchange that matches messages uses them: shared
// memory inside a host, data links between hosts.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "queue/entry.h"

namespace horoacc {

class MessageWay;

/// A message up to this size is sent as a copy, so that the sender need not wait.
inline constexpr uint64_t kSmallMessageBytes = 64 << 10;

/// What a receiver knows of a message before a receive matches it.
struct Offer {
  MessageWay* way = nullptr;
  uint64_t name = 0;  ///< that the way gave it; not of two messages of one sender
  uint32_t process_set = 0;
  int32_t tag = 0;
  int from = 0;  ///< the sender's global rank
  uint64_t bytes = 0;
  bool whole = false;             ///< its bytes have come along:
  std::vector<std::byte> inside;  ///< here
};

/// Any thread may call Send; only the driver calls the rest.
class MessageWay {
 public:
  /// Functions of the exchange.
  struct Events {
    std::function<void(Offer)> offered;
    std::function<void(const MessageWay*, int from, uint64_t name)> withdrawn;  ///< an offer
    std::function<void(std::shared_ptr<MessageEntry>, Status)> finish;
  };
  /// `needs_peer`: the message cannot be completed without its peer.
  using Visitor = std::function<void(const std::shared_ptr<MessageEntry>&, bool needs_peer)>;

  virtual ~MessageWay() = default;
  virtual Status Send(std::shared_ptr<MessageEntry> entry) = 0;
  /// Takes over what Send has left for the driver.
  virtual void TakeFresh() = 0;
  /// A receive has matched. False: the sender has withdrawn the message, and the receive goes on
  /// waiting.
  virtual bool Take(Offer& offer, const std::shared_ptr<MessageEntry>& entry) = 0;
  /// The messages that are under way, or that this rank has sent.
  virtual void Visit(const Visitor& visit) const = 0;
  /// Ends one of them with `error`, at once or when no peer reads its memory any more. False: it is
  /// not among them.
  virtual bool Cancel(const MessageEntry& entry, const Error& error) = 0;
  /// Forgets everything. Returns the calls that were not complete.
  virtual std::vector<std::shared_ptr<MessageEntry>> Drop() = 0;
  /// Whether a receiver is in the middle of a message of this rank.
  [[nodiscard]] virtual bool Gives() const = 0;
};

[[nodiscard]] inline Error SizesDiffer(int from, uint64_t sent, int to, uint64_t room) {
  return MakeError(ErrorKind::kMismatch,
                   "rank " + std::to_string(from) + " sends a message of " + std::to_string(sent) +
                       " bytes, and rank " + std::to_string(to) + " receives one of " +
                       std::to_string(room),
                   from);
}

[[nodiscard]] inline Error GaveUp(int rank, bool sends) {
  return MakeError(ErrorKind::kAborted,
                   "rank " + std::to_string(rank) + " gave up " + (sends ? "sending" : "receiving"),
                   rank);
}

}  // namespace horoacc
