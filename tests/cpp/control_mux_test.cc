// Messages find their process set, in order, also those that come before it is there.
#include "negotiate/control_mux.h"

#include <cstring>
#include <deque>
#include <vector>

#include "check.h"

namespace horoacc {
namespace {

class Inbox final : public ControlLinks {
 public:
  void Arrive(uint32_t process_set, uint8_t text) {
    ControlMessage message{1, std::vector<std::byte>(5)};
    std::memcpy(message.bytes.data(), &process_set, sizeof process_set);
    message.bytes[4] = static_cast<std::byte>(text);
    arrived_.push_back(std::move(message));
  }
  Status Send(int, std::span<const std::byte>) override { return {}; }
  Result<std::optional<ControlMessage>> Receive() override {
    if (arrived_.empty()) return std::optional<ControlMessage>();
    std::optional<ControlMessage> first = std::move(arrived_.front());
    arrived_.pop_front();
    return first;
  }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "inbox"; }
  [[nodiscard]] uint64_t messages_sent() const override { return 0; }
  [[nodiscard]] uint64_t bytes_sent() const override { return 0; }

 private:
  std::deque<ControlMessage> arrived_;
};

TEST(early_messages_come_first_and_their_errors_are_told) {
  Inbox inbox;
  ControlMux mux(inbox, [](int) { return false; });
  inbox.Arrive(7, 1);
  inbox.Arrive(7, 2);
  CHECK(mux.Pump().ok());
  std::vector<int> seen;
  inbox.Arrive(7, 3);
  mux.Register(7, [&](int source, std::span<const std::byte> payload) -> Status {
    CHECK_EQ(source, 1);
    seen.push_back(static_cast<int>(payload[0]));
    if (seen.back() == 2) return MakeError(ErrorKind::kSystem, "two");
    return {};
  });
  CHECK(seen.empty());  // another thread may pump
  const auto pumped = mux.Pump();
  CHECK(!pumped.ok());
  CHECK_EQ(pumped.error().message, "two");
  CHECK(mux.Pump().value());
  CHECK(!mux.Pump().value());
  CHECK(seen == (std::vector<int>{1, 2, 3}));
}

TEST(a_removed_set_gets_nothing) {
  Inbox inbox;
  ControlMux mux(inbox, [](int) { return false; });
  mux.Register(7, [](int, std::span<const std::byte>) -> Status {
    return MakeError(ErrorKind::kSystem, "handled");
  });
  mux.Unregister(7);
  for (int k = 0; k < 10000; ++k) inbox.Arrive(7, 1);  // more than may come early
  CHECK(mux.Pump().ok());
}

}  // namespace
}  // namespace horoacc
