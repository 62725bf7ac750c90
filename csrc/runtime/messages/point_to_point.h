#pragma once
// Messages between two ranks of a host, through the memory that they share.
#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "negotiate/control_segment/set_segment.h"
#include "runtime/messages/message_descriptor.h"
#include "runtime/messages/message_exchange.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// A sender puts a message descriptor on its receiver's stack, one word of the control segment, and
/// rings. The receiver takes the whole stack at once, and either matches a message descriptor with
/// a receive or keeps it until one comes. The receiver copies from the sender's memory: from the
/// bytes behind a small message's descriptor, from a tensor in the arena, or else from windows that
/// the sender fills once a receive has matched.
class PointToPoint final : public MessageExchange {
 public:
  PointToPoint(const ControlSegment& control, const HostShare& share, const Doorbells& doorbells,
               Arena& arena, MessageSurroundings surroundings);

  /// kSystem if shared memory is exhausted.
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
  struct Outgoing {
    MessageDescriptor* descriptor;
    std::shared_ptr<MessageEntry> entry;  ///< null: the caller's call is complete
    std::byte* ring = nullptr;
    uint64_t shown = 0;
  };
  struct Incoming {
    MessageDescriptor* descriptor;
    std::shared_ptr<MessageEntry> entry;
    const std::byte* memory;  ///< the sender's memory
    uint32_t from_local;
    uint64_t copied = 0;
  };
  struct Arrived {
    MessageDescriptor* descriptor;
    uint32_t from_local;
  };

  [[nodiscard]] static bool Fits(const MessageEntry& receive, const MessageDescriptor& descriptor);
  [[nodiscard]] static Error Refused(const MessageDescriptor& descriptor, int to);
  [[nodiscard]] uint32_t LocalRank(int rank) const;
  void Finish(std::shared_ptr<MessageEntry> entry, Status outcome);
  void TakeFresh();
  bool TakeMail();
  /// False: the sender has withdrawn the message descriptor, and the receive still waits.
  bool Begin(const Arrived& arrived, const std::shared_ptr<MessageEntry>& entry);
  bool AdvanceOutgoing();
  bool Show(Outgoing& outgoing);
  bool AdvanceIncoming();
  bool Copy(Incoming& incoming);
  bool EndWhatCannotCome(const std::vector<std::pair<MessageEntry*, Error>>& ended);
  bool EndOverdue();

  const ControlSegment& control_;
  const HostShare& share_;
  const Doorbells& doorbells_;
  Arena& arena_;
  const MessageSurroundings surroundings_;
  std::atomic<uint32_t> pending_{0};

  std::mutex fresh_mutex_;  ///< no lock is taken under it
  std::vector<std::shared_ptr<MessageEntry>> fresh_receives_;
  std::vector<Outgoing> fresh_sends_;
  std::atomic<bool> fresh_{false};

  // Only the driver uses these.
  std::list<std::shared_ptr<MessageEntry>> receives_;  ///< in the order of the calls
  std::list<Arrived> arrived_;                         ///< in the order in which they were posted
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;
  int64_t next_deadline_ns_ = std::numeric_limits<int64_t>::max();
};

}  // namespace horoacc
