#pragma once
// Point-to-point calls, from the framework's call to its completion.
#include <functional>
#include <memory>
#include <optional>

#include "runtime/engine/completion.h"
#include "runtime/engine/handles.h"
#include "runtime/health/deadlines.h"
#include "runtime/job/calls.h"
#include "runtime/messages/message_exchange.h"

namespace horoacc {

class MessageCalls {
 public:
  MessageCalls(Job& job, Failure& failure, SetTable& sets, Handles& handles, Completion& completion,
               Deadlines& deadlines);

  /// Begins a message to or from one rank of a process set and returns its handle. Any thread.
  Result<uint64_t> Submit(uint32_t process_set, const Message& message, Submission::Buffers buffers,
                          double limit_seconds, std::function<void()> done);
  /// What only the driver may use, but for pending() and Unheard().
  [[nodiscard]] MessageExchange& exchange() { return *exchange_; }
  [[nodiscard]] const MessageExchange& exchange() const { return *exchange_; }

 private:
  /// The reason why the peer can send or receive nothing any more, if there is one.
  [[nodiscard]] std::optional<Error> WhyEnded(const MessageEntry& entry) const;
  /// Whether links between hosts may have to bring or take something for a message.
  [[nodiscard]] bool IsLinked(const ProcessSet& set, int peer) const;
  [[nodiscard]] bool HasLeft(const ProcessSet& set, int rank) const;

  Job& job_;
  Failure& failure_;
  SetTable& sets_;
  Handles& handles_;
  std::optional<MessageExchange> exchange_;
};

}  // namespace horoacc
