// What ranks that share no memory tell each other, damaged and out of turn: decisions on their way
// down, news on its way up, and messages between two ranks. It may be refused, and nothing more.
#include <map>
#include <random>

#include "negotiate/multi_host/multi_host_controller.h"
#include "runtime/messages/linked_messages.h"
#include "support/seeds.h"
#include "support/trees.h"

namespace horoacc::testing {
namespace {

/// Flips, drops, doubles or overwrites bytes.
void Damage(Bytes& bytes, std::mt19937_64& random) {
  for (uint64_t strokes = 1 + random() % 3; strokes > 0 && !bytes.empty(); --strokes) {
    const auto at = bytes.begin() + static_cast<ptrdiff_t>(random() % bytes.size());
    switch (random() % 4) {
      case 0:
        *at ^= std::byte{1} << (random() % 8);
        break;
      case 1:
        *at = static_cast<std::byte>(random());
        break;
      case 2:
        bytes.erase(at, at + static_cast<ptrdiff_t>(1 + random() % (bytes.end() - at)));
        break;
      default:
        bytes.insert(at, 1 + random() % 8, static_cast<std::byte>(random()));
    }
  }
}

/// Ranks 0 and 1 on one host, 2 and 3 on another, connected by hand. Rank 0 is the root, and 3
/// speaks to 2 only.
class MultiHostRanks {
 public:
  static constexpr int kRanks = 4;

  MultiHostRanks() {
    for (int rank = 0; rank < kRanks; ++rank) {
      controls_.push_back(std::make_unique<SegmentViews>(1, settings_));
      taps_.push_back(std::make_unique<Tap>());
      muxes_.push_back(std::make_unique<ControlMux>(*taps_[rank], [](int) { return false; }));
      MultiHostController::Place place;
      place.ranks = {0, 1, 2, 3};
      place.host_of = {0, 0, 1, 1};
      place.rank = rank;
      place.has_left = [](int) { return false; };
      controllers_.push_back(std::make_unique<MultiHostController>(
          *muxes_[rank], std::move(place), controls_[rank]->control(),
          (*controls_[rank])[0].doorbells, settings_));
    }
  }

  MultiHostController& controller(int rank) { return *controllers_[rank]; }
  Tap& tap(int rank) { return *taps_[rank]; }

  /// The rank submits `name`: four numbers, which travel with the news.
  Status Announce(int rank, const std::string& name, Collective collective) {
    const SetSegment::NamedId id = controls_[rank]->Lookup(name);
    const TensorKey key = controls_[rank]->WriteRow(0, id.id);
    Request request = SegmentViews::FourNumbers();
    request.collective = collective;
    const auto* input = reinterpret_cast<const std::byte*>(numbers_);
    const auto announced =
        controllers_[rank]->Announce({key.id, key.generation, id.id_version, &request, name, 0,
                                      std::span<const std::byte* const>(&input, 1)});
    return announced.ok() ? Status() : Status(announced.error());
  }

  Status Give(int rank, int source, Bytes bytes) {
    taps_[rank]->arriving.push_back({source, std::move(bytes)});
    const auto pumped = muxes_[rank]->Pump();
    return pumped.ok() ? Status() : Status(pumped.error());
  }

  /// Delivers everything that was sent until nothing is on its way; all of it, with the receiver
  /// in the place of the source.
  std::vector<std::pair<int, ControlMessage>> Deliver() {
    std::vector<std::pair<int, ControlMessage>> carried;
    for (bool any = true; std::exchange(any, false);) {
      for (int rank = 0; rank < kRanks; ++rank) {
        for (ControlMessage& message : std::exchange(taps_[rank]->sent, {})) {
          any = true;
          const int receiver = message.source;
          carried.push_back({receiver, {rank, message.bytes}});
          CHECK(Give(receiver, rank, std::move(message.bytes)).ok());
        }
      }
    }
    return carried;
  }

  /// Whatever is decided, carried out as far as it goes.
  bool Carry(int rank) {
    auto next = controllers_[rank]->Next();
    if (!next.ok() || !next.value()) return false;
    (void)controllers_[rank]->Finish(*next.value());
    return true;
  }

 private:
  const Settings settings_;
  const float numbers_[4] = {1, 2, 3, 4};
  std::vector<std::unique_ptr<SegmentViews>> controls_;
  std::vector<std::unique_ptr<Tap>> taps_;
  std::vector<std::unique_ptr<ControlMux>> muxes_;
  std::vector<std::unique_ptr<MultiHostController>> controllers_;
};

/// Every message of a few steps, a disagreement and a question among them: by receiver.
std::vector<std::pair<int, ControlMessage>> Honest() {
  std::vector<std::pair<int, ControlMessage>> all;
  MultiHostRanks multi_host_ranks;
  const auto deliver = [&] {
    for (auto& message : multi_host_ranks.Deliver()) all.push_back(std::move(message));
  };
  for (int step = 0; step < 3; ++step) {
    for (const char* name : {"a", "b"}) {
      for (int rank = MultiHostRanks::kRanks - 1; rank >= 0; --rank)
        CHECK(multi_host_ranks.Announce(rank, name, Collective::kAllreduce).ok());
    }
    CHECK(multi_host_ranks.controller(3).WhoHas(std::nullopt).ok());
    deliver();
    for (int rank = 0; rank < MultiHostRanks::kRanks; ++rank) {
      CHECK(multi_host_ranks.Carry(rank));
      while (multi_host_ranks.Carry(rank)) continue;
    }
    deliver();
  }
  for (int rank = MultiHostRanks::kRanks - 1; rank >= 0; --rank) {
    const auto collective = rank == 2 ? Collective::kAllgather : Collective::kAllreduce;
    CHECK(multi_host_ranks.Announce(rank, "c", collective).ok());
  }
  deliver();
  for (int rank = 0; rank < MultiHostRanks::kRanks; ++rank) CHECK(multi_host_ranks.Carry(rank));
  CHECK(multi_host_ranks.controller(1).Join(0).ok());
  CHECK(multi_host_ranks.controller(2).SayLeft().ok());
  deliver();
  CHECK(all.size() > 20);
  return all;
}

TEST(damaged_news_and_decisions_do_no_harm) {
  const auto honest = Honest();
  std::mt19937_64 random(1);
  for (int job = 0; job < 150; ++job) {
    check::ReseedHalfway(random, job, 150);
    MultiHostRanks multi_host_ranks;
    for (int rank = 0; rank < MultiHostRanks::kRanks; ++rank) {
      CHECK(multi_host_ranks.Announce(rank, "a", Collective::kAllreduce).ok());
      if (rank % 2 == 0) CHECK(multi_host_ranks.Announce(rank, "b", Collective::kAllreduce).ok());
    }
    if (job % 2 == 0) (void)multi_host_ranks.Deliver();
    for (int k = 0; k < 40; ++k) {
      auto [receiver, message] = honest[random() % honest.size()];
      if (k % 4 != 0) Damage(message.bytes, random);
      (void)multi_host_ranks.Give(receiver, message.source, std::move(message.bytes));
      (void)multi_host_ranks.Carry(static_cast<int>(random() % MultiHostRanks::kRanks));
    }
  }
}

TEST(truncated_news_and_decisions_do_no_harm) {
  for (const auto& [receiver, message] : Honest()) {
    for (size_t length = 0; length < message.bytes.size(); ++length) {
      MultiHostRanks multi_host_ranks;
      for (int rank = 0; rank < MultiHostRanks::kRanks; ++rank)
        CHECK(multi_host_ranks.Announce(rank, "a", Collective::kAllreduce).ok());
      // A copy of its own size, so that a sanitizer sees a read past the end.
      const auto end = message.bytes.begin() + static_cast<ptrdiff_t>(length);
      (void)multi_host_ranks.Give(receiver, message.source, Bytes(message.bytes.begin(), end));
      (void)multi_host_ranks.Carry(receiver);
    }
  }
}

/// A rank that receives what it was told to, from a peer that says what chance wants.
class Receiver {
 public:
  Receiver()
      : mux_(tap_, [](int) { return false; }),
        messages_(
            mux_, 0, [] {},
            {[this](MessageEntry& entry, Status outcome) { Ended(entry, std::move(outcome)); },
             [](const MessageEntry&) { return std::optional<Error>(); },
             [](MessageEntry&) { return MakeError(ErrorKind::kTimeout, "too late"); },
             [](void*) {}}) {}

  void Expect(int32_t tag, size_t bytes) {
    auto entry = std::make_shared<MessageEntry>(Message{});
    entry->message = Message{.sends = false, .peer = 1, .tag = tag, .bytes = bytes};
    entry->tensors.resize(1);
    auto& place = places_[entry.get()];
    place.resize(bytes);
    entry->tensors[0].output = place.data();
    messages_.Receive(std::move(entry));
  }
  void Offer(int32_t tag, const std::vector<std::byte>& bytes) {
    auto entry = std::make_shared<MessageEntry>(Message{});
    entry->message = Message{.sends = true, .peer = 1, .tag = tag, .bytes = bytes.size()};
    entry->tensors.resize(1);
    entry->tensors[0].input = bytes.data();
    CHECK(messages_.Send(std::move(entry)).ok());
  }
  Status Hear(Bytes bytes) {
    tap_.arriving.push_back({1, std::move(bytes)});
    const auto pumped = mux_.Pump();
    (void)messages_.Progress();
    return pumped.ok() ? Status() : Status(pumped.error());
  }
  void Progress() { (void)messages_.Progress(); }
  void FailAll() { messages_.FailAll(MakeError(ErrorKind::kAborted, "over")); }
  std::vector<ControlMessage> Said() { return std::exchange(tap_.sent, {}); }
  [[nodiscard]] int ended() const { return ended_; }
  [[nodiscard]] int good() const { return good_; }

 private:
  void Ended(MessageEntry& entry, Status outcome) {
    CHECK(!entry.complete.exchange(true));
    ++ended_;
    good_ += outcome.ok() ? 1 : 0;
  }

  Tap tap_;
  ControlMux mux_;
  std::map<const MessageEntry*, std::vector<std::byte>> places_;
  int ended_ = 0, good_ = 0;
  LinkedMessages messages_;
};

constexpr size_t kSmall = 100, kBig = 1 << 20;

/// What the sender of a small and of a big message says to a receiver who takes both, and what that
/// one answers.
std::pair<std::vector<ControlMessage>, std::vector<ControlMessage>> HonestMessages() {
  const std::vector<std::byte> small(kSmall, std::byte{1}), big(kBig, std::byte{2});
  Receiver sender, receiver;
  std::vector<ControlMessage> said, answered;
  sender.Offer(1, small);
  sender.Offer(2, big);
  receiver.Expect(1, kSmall);
  receiver.Expect(2, kBig);
  sender.Progress();
  while (receiver.ended() < 2) {
    for (ControlMessage& message : sender.Said()) {
      said.push_back(message);
      CHECK(receiver.Hear(std::move(message.bytes)).ok());
    }
    for (ControlMessage& message : receiver.Said()) {
      answered.push_back(message);
      CHECK(sender.Hear(std::move(message.bytes)).ok());
    }
  }
  CHECK_EQ(receiver.good(), 2);
  return {said, answered};
}

TEST(a_second_offer_of_one_name_takes_no_second_receive) {
  const auto [said, answered] = HonestMessages();
  Receiver receiver;
  receiver.Expect(2, kBig);
  receiver.Expect(2, kBig);
  const Bytes& offer = said[1].bytes;  // of the big message
  CHECK(receiver.Hear(offer).ok());
  CHECK(!receiver.Hear(offer).ok());
  receiver.FailAll();
  CHECK_EQ(receiver.ended(), 2);
}

TEST(damaged_messages_between_two_ranks_do_no_harm) {
  const auto [said, answered] = HonestMessages();
  const std::vector<std::byte> big(kBig, std::byte{3});
  std::mt19937_64 random(2);
  for (int job = 0; job < 100; ++job) {
    check::ReseedHalfway(random, job, 100);
    Receiver receiver;
    for (const int32_t tag : {1, 2, 3}) receiver.Expect(tag, tag == 1 ? kSmall : kBig);
    receiver.Offer(1, big);
    receiver.Progress();
    for (int k = 0; k < 20; ++k) {
      const auto& from = k % 3 == 0 ? answered : said;
      Bytes bytes = from[random() % from.size()].bytes;
      if (k % 4 != 0) {
        bytes.resize(std::min<size_t>(bytes.size(), 1 + random() % 200));
        Damage(bytes, random);
      }
      (void)receiver.Hear(std::move(bytes));
    }
    receiver.FailAll();
    CHECK_EQ(receiver.ended(), 4);
  }
}

}  // namespace
}  // namespace horoacc::testing
