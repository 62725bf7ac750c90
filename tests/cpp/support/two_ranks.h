#pragma once
// Two ranks on hosts of their own that exchange messages; what one of them says is up to the test.
#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/messages/link_messages.h"
#include "support/check.h"
#include "support/inproc_data.h"

namespace horoacc::testing {

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

}  // namespace horoacc::testing
