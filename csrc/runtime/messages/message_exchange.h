#pragma once
// Messages between two ranks, as the engine drives them: no group, no negotiation, matched by
// (process set, sender, tag) in the order of the calls.
#include <functional>
#include <memory>
#include <optional>

#include "queue/entry.h"

namespace horoacc {

/// Functions of the engine that messages call.
struct MessageSurroundings {
  std::function<void(MessageEntry&, Status)> complete;
  /// The reason why a message's peer can send or receive nothing any more, if there is one.
  std::function<std::optional<Error>(const MessageEntry&)> ended;
  /// A message is past its deadline: ends its process set and returns the error for the caller.
  std::function<Error(MessageEntry&)> overdue;
  std::function<void(void*)> free;
};

/// One rank's messages. Any thread may call Send and Receive; only the driver calls the rest.
class MessageExchange {
 public:
  virtual ~MessageExchange() = default;
  virtual Status Send(std::shared_ptr<MessageEntry> entry) = 0;
  virtual void Receive(std::shared_ptr<MessageEntry> entry) = 0;

  virtual bool Progress() = 0;
  /// Ends a message with `error`, unless it is complete.
  virtual void Cancel(MessageEntry& entry, const Error& error) = 0;
  virtual void FailAll(const Error& error) = 0;
  /// Whether a receiver is in the middle of a message of this rank.
  [[nodiscard]] virtual bool Gives() const = 0;
  /// Whether a call is not complete. Any thread.
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
