#pragma once
// Messages between two ranks, as the engine drives them: no group, no negotiation, matched by
// (process set, sender, tag) in the order of the calls.
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/messages/link_messages.h"
#include "runtime/messages/shm_messages.h"

namespace horoacc {

/// Functions of the engine that messages call.
struct MessageSurroundings {
  std::function<void(MessageEntry&, Status)> complete;
  /// The reason why a message's peer can send or receive nothing any more, if there is one.
  std::function<std::optional<Error>(const MessageEntry&)> ended;
  /// A message is past its deadline: ends its process set and returns the error for the caller.
  std::function<Error(MessageEntry&)> overdue;
};

/// One rank's messages. Messages of all peers are matched here; ShmMessages carries those of this
/// host's ranks, LinkMessages the others. Any thread may call Send and Receive; only the driver
/// calls the rest.
class MessageExchange {
 public:
  /// `has_left`: whether a rank of another host has shut down; empty: there is no other host.
  MessageExchange(const ShmMessages::Host& host, std::function<bool(int)> has_left,
                  MessageSurroundings surroundings);

  /// kSystem if shared memory is exhausted.
  Status Send(std::shared_ptr<MessageEntry> entry);
  void Receive(std::shared_ptr<MessageEntry> entry);

  bool Progress();
  /// Not after FailAll.
  Result<bool> ProgressLinks(DataLinks& links) { return links_->Progress(links); }
  /// Ends a message with `error`, unless it is complete.
  void Cancel(MessageEntry& entry, const Error& error);
  void FailAll(const Error& error);
  /// Whether a receiver is in the middle of a message of this rank.
  [[nodiscard]] bool Gives() const;
  /// Whether something is left for a thread that drives. Any thread.
  [[nodiscard]] bool pending() const {
    return pending_.load(std::memory_order_relaxed) > 0 || HasUnposted();
  }
  /// Whether something waits for ProgressLinks, maybe of calls that are complete. Any thread.
  [[nodiscard]] bool HasUnposted() const { return links_ && links_->HasUnposted(); }
  /// Whether a rank of another host may not have heard of a message of this rank. Any thread.
  [[nodiscard]] bool Unheard() const { return links_ && links_->Unheard(); }

 private:
  MessageWay::Events EventsOf();
  [[nodiscard]] static bool Fits(const MessageEntry& receive, const Offer& offer);
  void Finish(std::shared_ptr<MessageEntry> entry, Status outcome);
  void Offered(Offer offer);
  void TakeFresh();
  void Visit(const MessageWay::Visitor& visit) const;
  bool EndOverdue();

  const MessageSurroundings surroundings_;
  std::atomic<uint32_t> pending_{0};  ///< calls that are not complete
  ShmMessages shm_;
  std::optional<LinkMessages> links_;
  std::vector<MessageWay*> ways_;

  std::mutex fresh_mutex_;  ///< no lock is taken under it
  std::vector<std::shared_ptr<MessageEntry>> fresh_receives_;
  std::atomic<bool> fresh_{false};

  // Only the driver uses these.
  std::list<std::shared_ptr<MessageEntry>> receives_;  ///< in the order of the calls
  std::list<Offer> offers_;  ///< that no receive has matched, in the order in which they came
};

}  // namespace horoacc
