#pragma once
// Messages between ranks that do not all share memory, over the control links.
#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "negotiate/multi_host/control_mux.h"
#include "negotiate/wire.h"
#include "runtime/messages/message_exchange.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// A sender offers a message. A small message travels with its offer, as long as the receiver keeps
/// few unmatched bytes of this sender. The receiver asks for any other message in parts, a few at a
/// time, once a receive matches. So a receiver keeps at most kRoom bytes for each sender.
class LinkedMessages final : public MessageExchange {
 public:
  LinkedMessages(ControlMux& mux, int rank, std::function<void()> wake,
                 MessageSurroundings surroundings);
  ~LinkedMessages() override;

  Status Send(std::shared_ptr<MessageEntry> entry) override;
  void Receive(std::shared_ptr<MessageEntry> entry) override;
  bool Progress() override;
  void Cancel(MessageEntry& entry, const Error& error) override;
  void FailAll(const Error& error) override;
  [[nodiscard]] bool Gives() const override;
  [[nodiscard]] bool pending() const override {
    return pending_.load(std::memory_order_relaxed) > 0;
  }

 private:
  enum class Kind : uint8_t {
    kOffer = 1,
    kWant = 2,
    kPart = 3,
    kRefused = 4,
    kWithdrawn = 5,
    kMatched = 6
  };
  /// The sender, and the sender's number for the message.
  using Name = std::pair<int, uint64_t>;

  struct Outgoing {
    std::shared_ptr<MessageEntry> entry;
    uint64_t wanted = 0;  ///< parts that the receiver has asked for in all
    uint64_t sent = 0;    ///< bytes sent
    bool whole = false;   ///< the last part was sent; an empty message has one part
  };
  struct Incoming {
    std::shared_ptr<MessageEntry> entry;
    uint64_t got = 0;  ///< bytes received
  };
  struct Offer {
    Name name;
    uint32_t process_set = 0;
    int32_t tag = 0;
    uint64_t bytes = 0;
    bool eager = false;
    std::vector<std::byte> inside;  ///< the message's bytes, if `eager`
  };

  [[nodiscard]] static bool Fits(const MessageEntry& receive, const Offer& offer);
  [[nodiscard]] static WireWriter About(Kind kind, uint64_t number);
  Status SendTo(int peer, const WireWriter& writer);
  Status OnMessage(int source, std::span<const std::byte> payload);
  Status OnOffer(int source, uint64_t number, WireReader& reader);
  Status OnPart(const Name& name, std::span<const std::byte> part);
  void OnRefused(uint64_t number, uint64_t room, int source);
  void TakeFresh();
  bool TakeOwnMail();
  Status Begin(Offer offer, std::shared_ptr<MessageEntry> entry);
  Status GiveRoomBack(int source, uint64_t bytes);
  bool SendParts();
  bool EndWhatCannotCome();
  bool EndOverdue();
  void Finish(std::shared_ptr<MessageEntry> entry, Status outcome);

  ControlMux& mux_;
  const int rank_;
  const std::function<void()> wake_;
  const MessageSurroundings surroundings_;
  std::atomic<uint32_t> pending_{0};

  std::mutex fresh_mutex_;  ///< taken before the links' lock: offers keep the order of the calls
  uint64_t numbers_ = 0;
  std::map<int, uint64_t> kept_there_;  ///< by receiver: bytes of this rank that it may keep
  std::vector<std::pair<uint64_t, std::shared_ptr<MessageEntry>>> fresh_sends_;
  std::vector<std::shared_ptr<MessageEntry>> fresh_receives_;
  std::mutex own_mail_mutex_;                    ///< no lock is taken under it
  std::deque<std::vector<std::byte>> own_mail_;  ///< messages from this rank to itself

  // Only the driver uses these.
  std::list<std::shared_ptr<MessageEntry>> receives_;  ///< in the order of the calls
  std::list<Offer> offers_;  ///< not matched by a receive, in the order of arrival
  std::map<uint64_t, Outgoing> outgoing_;
  std::map<Name, Incoming> incoming_;
  std::map<int, uint64_t> matched_;  ///< by sender: matched bytes not reported to it yet
};

}  // namespace horoacc
