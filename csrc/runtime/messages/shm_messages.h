#pragma once
// Messages between two ranks of a host, through the memory that they share.
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "negotiate/control_segment/set_segment.h"
#include "runtime/messages/message_descriptor.h"
#include "runtime/messages/message_way.h"
#include "transport/memory/arena.h"
#include "transport/memory/host_share.h"
#include "transport/wake/doorbell.h"

namespace horoacc {

/// A sender puts a message descriptor on its receiver's stack, one word of the control segment, and
/// rings. The receiver takes the whole stack at once, and either matches a message descriptor with
/// a receive or keeps it until one comes. The receiver copies from the sender's memory: from the
/// bytes behind a small message's descriptor, from a tensor in the arena, or else from windows that
/// the sender fills once a receive has matched.
class ShmMessages final : public MessageWay {
 public:
  struct Host {
    const ControlSegment& control;
    const HostShare& share;
    const Doorbells& doorbells;
    Arena& arena;
    std::function<void(void*)> free;
  };
  ShmMessages(Host host, Events events) : host_(std::move(host)), events_(std::move(events)) {}

  /// Whether the rank is one of this host.
  [[nodiscard]] bool Reaches(int rank) const { return LocalRank(rank) < host_.share.ranks.size(); }
  bool Progress();

  /// kSystem if shared memory is exhausted.
  Status Send(std::shared_ptr<MessageEntry> entry) override;
  void TakeFresh() override;
  bool Take(Offer& offer, const std::shared_ptr<MessageEntry>& entry) override;
  void Visit(const Visitor& visit) const override;
  bool Cancel(const MessageEntry& entry, const Error& error) override;
  std::vector<std::shared_ptr<MessageEntry>> Drop() override;
  [[nodiscard]] bool Gives() const override;

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

  [[nodiscard]] static Error Refused(const MessageDescriptor& descriptor, int to);
  [[nodiscard]] uint32_t LocalRank(int rank) const;
  [[nodiscard]] MessageDescriptor* At(const DescriptorPlace& place) const;
  bool TakeMail();
  bool AdvanceOutgoing();
  bool Show(Outgoing& outgoing);
  bool AdvanceIncoming();
  bool Copy(Incoming& incoming);

  const Host host_;
  const Events events_;

  std::mutex fresh_mutex_;  ///< no lock is taken under it
  std::vector<Outgoing> fresh_sends_;
  std::atomic<bool> fresh_{false};

  // Only the driver uses these.
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;
};

}  // namespace horoacc
