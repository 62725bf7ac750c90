// What a rank of another host says of its messages, damaged and out of turn: it may be refused, and
// nothing more.
#include "runtime/messages/link_messages.h"

#include <deque>
#include <list>
#include <map>
#include <random>

#include "support/check.h"
#include "support/inproc_data.h"
#include "support/seeds.h"

namespace horoacc::testing {
namespace {

using Kind = MessageHeader::Kind;

constexpr size_t kSmall = 100, kBig = 3 << 20;

/// Rank 0 sends and receives what it was told to; rank 1 says what a test wants.
class TwoRanks {
 public:
  TwoRanks()
      : hub_(std::move(InprocDataHub::Create(2, {})).value()),
        links_{hub_->MakeLinks(0), hub_->MakeLinks(1)},
        messages_(
            0, [](int) { return false; }, EventsOf()),
        says_(std::move(links_[1]->OpenSend({{kStandingSet, 0}, 0, 0, 64, kSmallMessageBytes}))
                  .value()) {}
  ~TwoRanks() { messages_.Drop(); }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  void Expect(int32_t tag, size_t bytes) {
    const auto entry = EntryOf({.sends = false, .peer = 1, .tag = tag, .bytes = bytes});
    entry->tensors[0].output = places_[entry.get()].data();
    receives_.push_back(entry);
  }
  void Offer(int32_t tag, size_t bytes) {
    const auto entry = EntryOf({.sends = true, .peer = 1, .tag = tag, .bytes = bytes});
    entry->tensors[0].input = places_[entry.get()].data();
    CHECK(messages_.Send(entry).ok());
    messages_.TakeFresh();
    offered_ = entry;
  }
  void GiveUpOffer() {
    CHECK(messages_.Cancel(*offered_, MakeError(ErrorKind::kTimeout, "too late")));
  }
  [[nodiscard]] const Status& last_outcome() const { return outcome_; }
  void Say(std::span<const std::byte> bytes) {
    if (!says_->HasRoom()) return;
    const std::span<const std::byte> piece = said_.emplace_back(bytes.begin(), bytes.end());
    CHECK(says_->Post({&piece, 1}).ok());
  }
  void Say(MessageHeader header) {
    header.check = header.Checksum();
    Say(std::as_bytes(std::span(&header, 1)));
  }
  void SayWindow(uint64_t number, size_t bytes) {
    auto& link = windows_[number];
    if (!link)
      link = std::move(links_[1]->OpenSend({{kStandingSet, number}, 0, 0, 4, 1 << 20})).value();
    if (!link->HasRoom()) return;
    const std::span<const std::byte> piece = said_.emplace_back(bytes, std::byte{5});
    CHECK(link->Post({&piece, 1}).ok());
  }
  Status Turn() {
    HA_TRY(links_[0]->Progress());
    HA_TRY(messages_.Progress(*links_[0]));
    return {};
  }
  void DropAll() { ended_ += static_cast<int>(messages_.Drop().size() + receives_.size()); }
  [[nodiscard]] int ended() const { return ended_; }
  [[nodiscard]] int good() const { return good_; }

 private:
  std::shared_ptr<MessageEntry> EntryOf(const Message& message) {
    auto entry = std::make_shared<MessageEntry>(message);
    entry->tensors.resize(1);
    places_[entry.get()].resize(message.bytes);
    return entry;
  }
  MessageWay::Events EventsOf() {
    MessageWay::Events events;
    events.offered = [this](horoacc::Offer offer) {
      const auto fits = [&](const auto& receive) { return receive->message.tag == offer.tag; };
      const auto match = std::ranges::find_if(receives_, fits);
      if (match == receives_.end()) return;
      const std::shared_ptr<MessageEntry> entry = *match;
      receives_.erase(match);
      CHECK(offer.way->Take(offer, entry));
    };
    events.withdrawn = [](const MessageWay*, int, uint64_t) {};
    events.finish = [this](const std::shared_ptr<MessageEntry>& entry, const Status& outcome) {
      CHECK(!entry->complete.exchange(true));
      ++ended_;
      outcome_ = outcome;
      good_ += outcome.ok() ? 1 : 0;
    };
    return events;
  }

  int ended_ = 0, good_ = 0;
  Status outcome_;  ///< of the last call that ended
  std::shared_ptr<MessageEntry> offered_;
  std::map<const MessageEntry*, std::vector<std::byte>> places_;
  std::list<std::shared_ptr<MessageEntry>> receives_;
  std::deque<std::vector<std::byte>> said_;
  const std::shared_ptr<InprocDataHub> hub_;
  const std::unique_ptr<DataLinks> links_[2];
  LinkMessages messages_;
  const std::unique_ptr<SendLink> says_;
  std::map<uint64_t, std::unique_ptr<SendLink>> windows_;
};

const MessageHeader kSmallOffer{.kind = Kind::kSmall, .tag = 1, .number = 1, .bytes = kSmall};
const MessageHeader kBigOffer{.kind = Kind::kOffer, .tag = 2, .number = 2, .bytes = kBig};

TEST(a_small_and_a_big_message_arrive) {
  TwoRanks ranks;
  ranks.Expect(1, kSmall);
  ranks.Expect(2, kBig);
  ranks.Say(kBigOffer);
  ranks.Say(kSmallOffer);
  ranks.Say(std::vector<std::byte>(kSmall));
  for (int turn = 0; turn < 20; ++turn) {
    if (turn < 3) ranks.SayWindow(2, 1 << 20);
    CHECK(ranks.Turn().ok());
  }
  CHECK_EQ(ranks.good(), 2);
}

TEST(a_second_offer_of_one_name_takes_no_second_receive) {
  TwoRanks ranks;
  ranks.Expect(2, kBig);
  ranks.Expect(2, kBig);
  ranks.Say(kBigOffer);
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  ranks.Say(kBigOffer);
  Status refused;
  for (int turn = 0; turn < 5 && refused.ok(); ++turn) refused = ranks.Turn();
  CHECK_EQ(refused.error().culprit, 1);
  ranks.DropAll();
  CHECK_EQ(ranks.ended(), 2);
}

TEST(a_message_that_is_withdrawn_on_its_way_ends_its_receive) {
  TwoRanks ranks;
  ranks.Expect(2, kBig);
  ranks.Say(kBigOffer);
  ranks.SayWindow(2, 1 << 20);
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  ranks.Say({.kind = Kind::kWithdrawn, .number = 2});
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  CHECK_EQ(ranks.ended(), 1);
  CHECK_EQ(ranks.good(), 0);
}

TEST(a_sender_that_gives_up_waits_until_the_receiver_reads_no_more) {
  TwoRanks ranks;
  ranks.Offer(1, kBig);
  ranks.Say({.kind = Kind::kWant, .number = 1});
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  ranks.GiveUpOffer();
  ranks.GiveUpOffer();
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  CHECK_EQ(ranks.ended(), 0);
  ranks.Say({.kind = Kind::kRefused, .number = 1, .bytes = LinkMessages::kGaveUp});
  for (int turn = 0; turn < 5; ++turn) CHECK(ranks.Turn().ok());
  CHECK_EQ(ranks.ended(), 1);
  CHECK(ranks.last_outcome().error().kind == ErrorKind::kTimeout);
}

TEST(damaged_headers_do_no_harm) {
  const std::vector<MessageHeader> honest = {
      kSmallOffer,
      kBigOffer,
      {.kind = Kind::kWant, .number = 1},
      {.kind = Kind::kRefused, .number = 1, .bytes = 7},
      {.kind = Kind::kWithdrawn, .number = 2},
      {.kind = Kind::kMatched, .bytes = 300},
  };
  std::mt19937_64 random(2);
  for (int job = 0; job < 300; ++job) {
    check::ReseedHalfway(random, job, 300);
    TwoRanks ranks;
    for (const int32_t tag : {1, 2, 3}) ranks.Expect(tag, tag == 1 ? kSmall : kBig);
    ranks.Offer(1, kBig);  // its number is 1
    Status heard;
    for (int k = 0; k < 20 && heard.ok(); ++k) {
      MessageHeader header = honest[random() % honest.size()];
      const bool says_small = header.kind == Kind::kSmall;
      const auto bytes = std::as_writable_bytes(std::span(&header, 1));
      for (uint64_t strokes = random() % 3; strokes > 0; --strokes)
        bytes[random() % sizeof(header)] ^= std::byte{1} << (random() % 8);
      if (random() % 20 > 0) header.check = header.Checksum();
      ranks.Say(bytes.first(random() % 20 == 0 ? random() % sizeof(header) : sizeof(header)));
      if (says_small) ranks.Say(std::vector<std::byte>(kSmall));
      if (k % 3 == 0) ranks.SayWindow(2, random() % 4 == 0 ? random() % 1000 : 1 << 20);
      heard = ranks.Turn();
    }
    ranks.DropAll();
    CHECK_EQ(ranks.ended(), 4);
  }
}

}  // namespace
}  // namespace horoacc::testing
