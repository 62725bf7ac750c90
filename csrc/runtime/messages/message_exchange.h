#pragma once
// Messages between two ranks, as the engine drives them: no group, no negotiation, matched by
// (process set, sender, tag) in the order of the calls.
#include <functional>
#include <memory>
#include <optional>

#include "queue/entry.h"

namespace horoacc {

/// What an engine does for its messages.
struct MessageSurroundings {
  std::function<void(MessageEntry&, Status)> complete;
  /// Why nothing can come from, or be taken by, the peer of a message any more.
  std::function<std::optional<Error>(const MessageEntry&)> ended;
  /// The time of a message is over: ends its process set, and says what to tell.
  std::function<Error(MessageEntry&)> overdue;
  std::function<void(void*)> free;
};

/// One rank's messages. Send and Receive may come from any thread; the rest is the driver's.
class MessageExchange {
 public:
  virtual ~MessageExchange() = default;
  virtual Status Send(std::shared_ptr<MessageEntry> entry) = 0;
  virtual void Receive(std::shared_ptr<MessageEntry> entry) = 0;

  virtual bool Progress() = 0;
  /// Ends one message, if it is still there.
  virtual void Cancel(MessageEntry& entry, const Error& error) = 0;
  virtual void FailAll(const Error& error) = 0;
  /// A receiver is in the middle of a message of this rank.
  [[nodiscard]] virtual bool Gives() const = 0;
  /// Calls that are not complete. Any thread.
  [[nodiscard]] virtual bool pending() const = 0;

  [[nodiscard]] static Error SizesDiffer(int from, uint64_t sent, int to, uint64_t room) {
    return MakeError(ErrorKind::kMismatch,
                     "rank " + std::to_string(from) + " sends a message of " +
                         std::to_string(sent) + " bytes, and rank " + std::to_string(to) +
                         " receives one of " + std::to_string(room),
                     from);
  }
};

}  // namespace horoacc
