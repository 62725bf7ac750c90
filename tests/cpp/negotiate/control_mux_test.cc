// Messages find their process set, in order, also those that come before it is there.
#include "negotiate/multi_host/control_mux.h"

#include <cstring>
#include <deque>
#include <vector>

#include "negotiate/control_segment/segment_layout.h"
#include "negotiate/multi_host/multi_host_tree.h"
#include "support/check.h"

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
  [[nodiscard]] std::vector<int> peers() const override { return {}; }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "inbox"; }
  [[nodiscard]] uint64_t messages_sent() const override { return 0; }
  [[nodiscard]] uint64_t bytes_sent() const override { return 0; }

 private:
  std::deque<ControlMessage> arrived_;
};

constexpr int kMoreThanMayComeEarly = 100000;

void PumpAll(ControlMux& mux) {
  for (bool any = true; any;) {
    const auto pumped = mux.Pump();
    CHECK(pumped.ok());
    any = pumped.value();
  }
}

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
  for (int k = 0; k < kMoreThanMayComeEarly; ++k) inbox.Arrive(7, 1);
  PumpAll(mux);
}

TEST(all_sets_may_be_removed_at_once) {
  Inbox inbox;
  ControlMux mux(inbox, [](int) { return false; });
  for (uint32_t set = 0; set < 2 * kSegmentSets; ++set) mux.Unregister(set);
  for (int k = 0; k < kMoreThanMayComeEarly; ++k)
    inbox.Arrive(kSegmentSets + static_cast<uint32_t>(k) % kSegmentSets, 1);
  PumpAll(mux);
}

// A peer that knows the set already may tell of every id there is before this rank knows it.
TEST(whatever_a_correct_peer_can_send_early_is_kept) {
  Inbox inbox;
  ControlMux mux(inbox, [](int) { return false; });
  for (uint32_t child = 0; child < kFanOut; ++child) {
    for (uint32_t id = 0; id < kIds; ++id) inbox.Arrive(7, static_cast<uint8_t>(id));
  }
  PumpAll(mux);
  uint32_t handled = 0;
  mux.Register(7, [&](int, std::span<const std::byte> payload) -> Status {
    CHECK_EQ(static_cast<uint8_t>(payload[0]), static_cast<uint8_t>(handled % kIds));
    ++handled;
    return {};
  });
  PumpAll(mux);
  CHECK_EQ(handled, kFanOut * kIds);
}

TEST(more_than_a_correct_peer_can_send_early_is_an_error) {
  Inbox inbox;
  ControlMux mux(inbox, [](int) { return false; });
  for (int k = 0; k < kMoreThanMayComeEarly; ++k) inbox.Arrive(7, 1);
  Result<bool> pumped = true;
  while (pumped.ok() && pumped.value()) pumped = mux.Pump();
  CHECK(!pumped.ok());
  CHECK_EQ(pumped.error().culprit, 1);
}

// Who pumps has other things to do than to take messages for ever.
TEST(a_pump_ends_although_messages_keep_coming) {
  Inbox inbox;
  ControlMux mux(inbox, [](int) { return false; });
  mux.Register(7, [&](int, std::span<const std::byte>) -> Status {
    inbox.Arrive(7, 1);
    return {};
  });
  inbox.Arrive(7, 1);
  CHECK(mux.Pump().value());
}

}  // namespace
}  // namespace horoacc
