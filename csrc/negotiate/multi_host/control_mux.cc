#include "negotiate/multi_host/control_mux.h"

#include <algorithm>
#include <cstring>

#include "negotiate/control_segment/segment_layout.h"
#include "negotiate/multi_host/multi_host_tree.h"

namespace horoacc {
namespace {

constexpr size_t kPrefix = sizeof(uint32_t);
constexpr int kMessagesPerPump = 1024;

// A rank that knows the set already may submit to it before this one does. No call of the set is
// decided before all ranks know it, so each child can tell of every id once; a call that waits for
// long may be rejected now and then. A correct peer does not send more.
constexpr size_t kMostEarlyMessages = kFanOut * kIds + 4096;

}  // namespace

void ControlMux::Register(uint32_t process_set, Handler handler) {
  std::lock_guard lock(mutex_);
  handlers_[process_set] = std::move(handler);
}

void ControlMux::Unregister(uint32_t process_set) {
  std::lock_guard lock(mutex_);
  handlers_.erase(process_set);
  early_.erase(process_set);
  // A set that all its ranks have released gets no more messages. The others go with the engine,
  // and there are never more of them.
  retired_.push_back(process_set);
  if (retired_.size() > kSegmentSets + 1) retired_.pop_front();
}

Status ControlMux::Send(uint32_t process_set, int peer, std::span<const std::byte> payload) {
  std::vector<std::byte> bytes(kPrefix + payload.size());
  std::memcpy(bytes.data(), &process_set, kPrefix);
  std::memcpy(bytes.data() + kPrefix, payload.data(), payload.size());
  std::lock_guard lock(mutex_);
  if (!links_) return {};
  Status sent = links_->Send(peer, bytes);
  if (!sent.ok() && has_left_(peer)) return {};
  return sent;
}

Result<std::optional<ControlMux::Delivery>> ControlMux::Next() {
  for (auto early = early_.begin(); early != early_.end(); ++early) {
    const auto found = handlers_.find(early->first);
    if (found == handlers_.end()) continue;
    Delivery delivery{std::move(early->second.front()), found->second};
    early->second.pop_front();
    if (early->second.empty()) early_.erase(early);
    return std::optional(std::move(delivery));
  }
  for (;;) {
    Result<std::optional<ControlMessage>> received = links_->Receive();
    if (!received.ok()) {
      if (received.error().culprit >= 0 && has_left_(received.error().culprit))
        return std::optional<Delivery>();
      return std::move(received.error());
    }
    if (!received.value()) return std::optional<Delivery>();
    ControlMessage message = std::move(*received.value());
    if (message.bytes.size() < kPrefix) {
      return MakeError(ErrorKind::kSystem, "a control message is too short", message.source);
    }
    uint32_t process_set = 0;
    std::memcpy(&process_set, message.bytes.data(), kPrefix);
    if (const auto found = handlers_.find(process_set); found != handlers_.end())
      return std::optional(Delivery{std::move(message), found->second});
    if (std::ranges::find(retired_, process_set) != retired_.end()) continue;
    std::deque<ControlMessage>& early = early_[process_set];
    if (early.size() >= kMostEarlyMessages) {
      return MakeError(ErrorKind::kSystem, "too many messages for an unknown process set",
                       message.source);
    }
    early.push_back(std::move(message));
  }
}

void ControlMux::Close() {
  std::lock_guard lock(mutex_);
  sent_ = SentSoFar();
  links_ = nullptr;
}

Result<bool> ControlMux::Pump() {
  const auto with_links = [this](auto&& action) {
    std::lock_guard lock(mutex_);
    if (links_) action(*links_);
  };
  with_links([](ControlLinks& links) { links.Hold(); });
  Result<bool> taken = Deliver();
  with_links([](ControlLinks& links) { links.Flush(); });
  return taken;
}

Result<bool> ControlMux::Deliver() {
  for (int taken = 0;; ++taken) {
    if (taken == kMessagesPerPump) return true;
    std::optional<Delivery> delivery;
    {
      std::lock_guard lock(mutex_);
      if (!links_) return false;
      HA_ASSIGN(delivery, Next());
    }
    if (!delivery) return taken > 0;
    HA_TRY(delivery->handler(delivery->message.source,
                             std::span(delivery->message.bytes).subspan(kPrefix)));
  }
}

}  // namespace horoacc
