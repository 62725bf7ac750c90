#pragma once
// One rank's control links, shared by its process sets.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/control/control_links.h"

namespace horoacc {

/// Messages start with the process set's number. Send may come from any thread, Pump only from
/// the engine's driver.
class ControlMux {
 public:
  using Handler = std::function<Status(int source, std::span<const std::byte> payload)>;

  /// `has_left`: has this rank shut down in good order? Then its silence is no fault.
  ControlMux(ControlLinks& links, std::function<bool(int)> has_left)
      : links_(&links), has_left_(std::move(has_left)) {}

  /// The links are about to go: nothing is sent or received any more.
  void Close();

  /// Messages for a set that came before it was registered are handed over by the next Pump, in
  /// front of later ones.
  void Register(uint32_t process_set, Handler handler);
  /// Later messages for the set are dropped. Its number is not registered again.
  void Unregister(uint32_t process_set);
  Status Send(uint32_t process_set, int peer, std::span<const std::byte> payload);
  /// Takes the messages that have arrived, or the first of many. True if there was one. Messages
  /// that are sent meanwhile go at the end, to each peer in one piece.
  Result<bool> Pump();

  /// See ControlLinks::HasUnsent.
  [[nodiscard]] bool HasUnsent() {
    std::lock_guard lock(mutex_);
    return links_ && links_->HasUnsent();
  }

  /// See ControlLinks::peers.
  [[nodiscard]] std::vector<int> peers() {
    std::lock_guard lock(mutex_);
    return links_ ? links_->peers() : std::vector<int>();
  }

  struct Sent {
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] Sent sent() {
    std::lock_guard lock(mutex_);
    return SentSoFar();
  }

 private:
  /// The next message with its handler; none: nothing has arrived. Under the lock.
  struct Delivery {
    ControlMessage message;
    Handler handler;
  };
  Result<std::optional<Delivery>> Next();
  Result<bool> Deliver();
  [[nodiscard]] Sent SentSoFar() const {
    return links_ ? Sent{links_->messages_sent(), links_->bytes_sent()} : sent_;
  }

  ControlLinks* links_;  ///< null once they are closed
  Sent sent_;            ///< by then
  std::function<bool(int)> has_left_;
  std::mutex mutex_;
  std::map<uint32_t, Handler> handlers_;
  std::map<uint32_t, std::deque<ControlMessage>> early_;  ///< not yet handed over
  std::deque<uint32_t> retired_;                          ///< the latest ones
};

}  // namespace horoacc
