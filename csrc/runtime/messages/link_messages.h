#pragma once
// Messages between ranks of different hosts, over data links.
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "runtime/messages/message_way.h"
#include "transport/data/data_links.h"

namespace horoacc {

/// What two ranks tell each other on the links {kStandingSet, 0}, one in each direction.
struct MessageHeader {
  enum class Kind : uint32_t {
    kOffer = 1,      ///< the sender waits for kWant
    kSmall = 2,      ///< an offer whose bytes are the link's next message, if it has any
    kWant = 3,       ///< a receive has matched: the bytes may come
    kRefused = 4,    ///< it has room for another number of bytes, or the receiver gave up
    kWithdrawn = 5,  ///< the sender gives up
    kMatched = 6,    ///< small messages were matched; `bytes`: what they are charged with
  };
  Kind kind = Kind::kOffer;
  uint32_t process_set = 0;
  int32_t tag = 0;
  uint32_t check = 0;   ///< CRC-32C of the others
  uint64_t number = 0;  ///< the sender's, of the message
  uint64_t bytes = 0;

  [[nodiscard]] uint32_t Checksum() const {
    MessageHeader others = *this;
    others.check = 0;
    return Crc32c(std::as_bytes(std::span(&others, 1)));
  }
};
static_assert(sizeof(MessageHeader) == 32);

/// A sender offers a message. A small message follows its offer, as long as the receiver keeps few
/// unmatched bytes of this sender. The bytes of any other message pass through a link of their own,
/// {kStandingSet, the message's number}, once a receive has matched: from the sender's memory to
/// the receiver's, in windows.
class LinkMessages final : public MessageWay {
 public:
  /// Stands for the bytes that a receiver that gave up has room for.
  static constexpr uint64_t kGaveUp = ~uint64_t{0};

  /// `has_left`: whether a rank has shut down in good order.
  LinkMessages(int rank, std::function<bool(int)> has_left, Events events)
      : rank_(rank), has_left_(std::move(has_left)), events_(std::move(events)) {}

  /// Links stay open between two calls, up to Drop.
  Result<bool> Progress(DataLinks& links);
  /// Whether something waits for Progress. Any thread.
  [[nodiscard]] bool HasUnposted() const { return unposted_.load(std::memory_order_relaxed) > 0; }
  /// Whether a peer may not have received a header. Any thread.
  [[nodiscard]] bool Unheard() const { return unheard_.load(std::memory_order_relaxed) > 0; }

  Status Send(std::shared_ptr<MessageEntry> entry) override;
  void TakeFresh() override;
  bool Take(Offer& offer, const std::shared_ptr<MessageEntry>& entry) override;
  void Visit(const Visitor& visit) const override;
  bool Cancel(const MessageEntry& entry, const Error& error) override;
  std::vector<std::shared_ptr<MessageEntry>> Drop() override;
  [[nodiscard]] bool Gives() const override;

 private:
  using Bytes = std::vector<std::byte>;
  using Name = std::pair<int, uint64_t>;  ///< the sender, and its number for the message

  struct Peer {
    std::unique_ptr<SendLink> out;    ///< opened with the first header to the peer
    std::unique_ptr<ReceiveLink> in;  ///< opened when the peer has called
    std::deque<Bytes> unposted, posted;
    uint64_t heard = 0;                      ///< messages of `out` that were taken
    std::optional<MessageHeader> announced;  ///< the bytes of this small message come next
    uint64_t matched = 0;                    ///< charges not reported to the peer yet
  };
  struct Outgoing {
    std::shared_ptr<MessageEntry> entry;
    std::unique_ptr<SendLink> link;
    bool wanted = false;
    std::optional<Error> given_up;  ///< the peer still reads; afterwards the call ends with this
  };
  struct Incoming {
    std::shared_ptr<MessageEntry> entry;
    std::unique_ptr<ReceiveLink> link;
    uint64_t expected = 0, received = 0;  ///< windows
  };
  struct Fresh {
    MessageHeader header;
    Bytes inside;
    int peer;
    std::shared_ptr<MessageEntry> entry;  ///< null: the caller's call is complete
  };

  void Tell(int rank, MessageHeader header, Bytes inside = {});
  void Post(int rank, Bytes bytes);
  void Close(Peer& peer);
  Result<bool> Listen(int rank, Peer& peer);
  Status Hear(int rank, Peer& peer, Bytes bytes);
  Status OnOffer(int rank, const MessageHeader& header, Bytes inside);
  Result<bool> Speak(DataLinks& links, int rank, Peer& peer);
  Result<bool> Give(DataLinks& links);
  Result<bool> Get(DataLinks& links);
  void GiveRoomBack(int rank, uint64_t bytes);

  const int rank_;
  const std::function<bool(int)> has_left_;
  const Events events_;
  std::atomic<uint64_t> unposted_{0}, unheard_{0};  ///< headers and small messages

  std::mutex fresh_mutex_;  ///< no lock is taken under it
  uint64_t numbers_ = 0;
  std::map<int, uint64_t> kept_there_;  ///< by receiver: charges of what it may keep of this rank
  std::vector<Fresh> fresh_;

  // Only the driver uses these.
  std::map<int, Peer> peers_;  ///< those with which headers were exchanged
  std::map<uint64_t, Outgoing> outgoing_;
  std::map<Name, Incoming> incoming_;
  std::deque<Bytes> retired_;  ///< a carrier may still read them
};

}  // namespace horoacc
