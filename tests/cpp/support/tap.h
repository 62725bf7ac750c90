#pragma once
// Control links without a network: a test delivers each message.
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "transport/control/control_links.h"

namespace horoacc::testing {

using Bytes = std::vector<std::byte>;

/// Keeps what a controller sends, so that it can be damaged and sent to another one.
class Tap final : public ControlLinks {
 public:
  Status Send(int peer, std::span<const std::byte> bytes) override {
    sent.push_back({peer, {bytes.begin(), bytes.end()}});
    with_link.insert(peer);
    return {};
  }
  Result<std::optional<ControlMessage>> Receive() override {
    if (arriving.empty()) return std::optional<ControlMessage>();
    ControlMessage message = std::move(arriving.back());
    arriving.pop_back();
    with_link.insert(message.source);
    return std::optional<ControlMessage>(std::move(message));
  }
  [[nodiscard]] std::vector<int> peers() const override {
    return {with_link.begin(), with_link.end()};
  }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "tap"; }
  [[nodiscard]] uint64_t messages_sent() const override { return sent.size(); }
  [[nodiscard]] uint64_t bytes_sent() const override { return 0; }

  std::vector<ControlMessage> sent;  ///< source: the peer it is for
  std::vector<ControlMessage> arriving;
  std::set<int> with_link;
};

}  // namespace horoacc::testing
