#include "negotiate/control_mux.h"

#include <cstring>

namespace horoacc {
namespace {

constexpr size_t kPrefix = sizeof(uint32_t);
constexpr size_t kMostEarlyMessages = 4096;

}  // namespace

Status ControlMux::Register(uint32_t process_set, Handler handler) {
  std::deque<ControlMessage> early;
  {
    std::lock_guard lock(mutex_);
    handlers_[process_set] = handler;
    if (const auto found = early_.find(process_set); found != early_.end()) {
      early = std::move(found->second);
      early_.erase(found);
    }
  }
  for (const ControlMessage& message : early) {
    HA_TRY(handler(message.source, std::span(message.bytes).subspan(kPrefix)));
  }
  return {};
}

void ControlMux::Unregister(uint32_t process_set) {
  std::lock_guard lock(mutex_);
  handlers_.erase(process_set);
}

Status ControlMux::Send(uint32_t process_set, int peer, std::span<const std::byte> payload) {
  std::vector<std::byte> bytes(kPrefix + payload.size());
  std::memcpy(bytes.data(), &process_set, kPrefix);
  std::memcpy(bytes.data() + kPrefix, payload.data(), payload.size());
  std::lock_guard lock(mutex_);
  Status sent = links_.Send(peer, bytes);
  if (!sent.ok() && has_left_(peer)) return {};
  return sent;
}

Result<bool> ControlMux::Pump() {
  bool any = false;
  for (;;) {
    ControlMessage message;
    Handler handler;
    {
      std::lock_guard lock(mutex_);
      Result<std::optional<ControlMessage>> received = links_.Receive();
      if (!received.ok()) {
        if (received.error().culprit >= 0 && has_left_(received.error().culprit)) return any;
        return std::move(received.error());
      }
      if (!received.value()) return any;
      message = std::move(*received.value());
      any = true;
      if (message.bytes.size() < kPrefix) {
        return MakeError(ErrorKind::kSystem, "a control message is too short", message.source);
      }
      uint32_t process_set = 0;
      std::memcpy(&process_set, message.bytes.data(), kPrefix);
      const auto found = handlers_.find(process_set);
      if (found == handlers_.end()) {
        std::deque<ControlMessage>& early = early_[process_set];
        if (early.size() >= kMostEarlyMessages) {
          return MakeError(ErrorKind::kSystem, "too many messages for an unknown process set",
                           message.source);
        }
        early.push_back(std::move(message));
        continue;
      }
      handler = found->second;
    }
    HA_TRY(handler(message.source, std::span(message.bytes).subspan(kPrefix)));
  }
}

}  // namespace horoacc
