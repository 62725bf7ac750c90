#pragma once
// The message controllers of N ranks, without engines or a network: a test delivers each message.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/multi_host/control_mux.h"
#include "negotiate/tree/tree_controller.h"
#include "support/segment_views.h"
#include "transport/control/control_links.h"

namespace horoacc::testing {

using Bytes = std::vector<std::byte>;

/// Keeps what a controller sends, so that it can be damaged and sent to another one.
class Tap final : public ControlLinks {
 public:
  Status Send(int peer, std::span<const std::byte> bytes) override {
    sent.push_back({peer, {bytes.begin(), bytes.end()}});
    return {};
  }
  Result<std::optional<ControlMessage>> Receive() override {
    if (arriving.empty()) return std::optional<ControlMessage>();
    ControlMessage message = std::move(arriving.back());
    arriving.pop_back();
    return std::optional<ControlMessage>(std::move(message));
  }
  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "tap"; }
  [[nodiscard]] uint64_t messages_sent() const override { return sent.size(); }
  [[nodiscard]] uint64_t bytes_sent() const override { return 0; }

  std::vector<ControlMessage> sent;  ///< source: the peer it is for
  std::vector<ControlMessage> arriving;
};

/// Ranks of the message controller, connected by hand.
class Trees {
 public:
  explicit Trees(int ranks, Settings settings = {})
      : settings_(std::move(settings)), controls_(ranks, settings_) {
    std::vector<int> globals;
    for (int rank = 0; rank < ranks; ++rank) globals.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      taps_.push_back(std::make_unique<Tap>());
      muxes_.push_back(std::make_unique<ControlMux>(*taps_[rank], [](int) { return false; }));
      controllers_.push_back(std::make_unique<TreeController>(
          *muxes_[rank], 0, controls_.control(rank), controls_[rank].context,
          controls_[rank].doorbells, settings_, globals));
    }
  }

  [[nodiscard]] SegmentViews& controls() { return controls_; }
  [[nodiscard]] uint32_t IdOf(const std::string& name) { return controls_.Lookup(name).id; }
  Tap& tap(int rank) { return *taps_[rank]; }
  TreeController& controller(int rank) { return *controllers_[rank]; }

  /// Gives one message to a rank. The outcome of handling it.
  Status Give(int rank, int source, Bytes bytes) {
    taps_[rank]->arriving.push_back({source, std::move(bytes)});
    const auto pumped = muxes_[rank]->Pump();
    if (pumped.ok()) return {};
    return pumped.error();
  }

  Result<Announced> Announce(int rank, const std::string& name) {
    const SetSegment::NamedId id = controls_.Lookup(name, rank);
    const TensorKey key = controls_.WriteRow(rank, id.id);
    const Request request = SegmentViews::FourNumbers();
    return controllers_[rank]->Announce({key.id, key.generation, id.id_version, &request});
  }

  /// Every rank submits `name`, children first, and all messages arrive.
  void AnnounceEverywhere(const std::string& name) {
    for (int rank = controls_.size() - 1; rank >= 0; --rank) CHECK(Announce(rank, name).ok());
    Deliver();
  }

  /// Delivers what one rank has sent so far, or `messages` of it that were held back.
  void Deliver(int rank) { Deliver(rank, std::exchange(taps_[rank]->sent, {})); }
  void Deliver(int rank, std::vector<ControlMessage> messages) {
    for (ControlMessage& message : messages)
      CHECK(Give(message.source, rank, std::move(message.bytes)).ok());
  }
  /// Delivers everything that was sent, until nothing is on its way.
  void Deliver() {
    for (bool any = true; std::exchange(any, false);) {
      for (int rank = 0; rank < controls_.size(); ++rank) {
        any = any || !taps_[rank]->sent.empty();
        Deliver(rank);
      }
    }
  }

  /// The next decision of a rank, carried out; it must be there.
  Decision Carry(int rank) {
    auto next = controllers_[rank]->Next();
    CHECK(next.ok());
    CHECK(next.value().has_value());
    CHECK(controllers_[rank]->Finish(*next.value()).ok());
    return *next.value();
  }
  /// All decisions that are there, on all ranks, which must be alike: the names of each.
  std::vector<std::vector<std::string>> CarryOut() {
    std::vector<std::vector<std::string>> ran;
    for (int rank = 0; rank < controls_.size(); ++rank) {
      std::vector<std::vector<std::string>> here;
      for (;;) {
        auto next = controllers_[rank]->Next();
        CHECK(next.ok());
        if (!next.value()) break;
        CHECK(next.value()->kind == Decision::Kind::kRun);
        here.emplace_back();
        for (const uint32_t id : next.value()->ids)
          here.back().push_back(controls_.control(rank).NameOf(id));
        CHECK(controllers_[rank]->Finish(*next.value()).ok());
      }
      if (rank == 0) ran = here;
      CHECK(here == ran);
    }
    return ran;
  }

 private:
  const Settings settings_;
  SegmentViews controls_;
  std::vector<std::unique_ptr<Tap>> taps_;
  std::vector<std::unique_ptr<ControlMux>> muxes_;
  std::vector<std::unique_ptr<TreeController>> controllers_;
};

}  // namespace horoacc::testing
