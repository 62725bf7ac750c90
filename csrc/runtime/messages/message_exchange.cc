#include "runtime/messages/message_exchange.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace horoacc {

MessageExchange::MessageExchange(const ShmMessages::Host& host, std::function<bool(int)> has_left,
                                 MessageSurroundings surroundings)
    : surroundings_(std::move(surroundings)), shm_(host, EventsOf()), ways_{&shm_} {
  if (!has_left) return;
  links_.emplace(host.share.ranks[host.share.local_rank], std::move(has_left), EventsOf());
  ways_.push_back(&*links_);
}

MessageWay::Events MessageExchange::EventsOf() {
  MessageWay::Events events;
  events.offered = [this](Offer offer) { Offered(std::move(offer)); };
  events.withdrawn = [this](const MessageWay* way, int from, uint64_t name) {
    std::erase_if(offers_, [&](const Offer& offer) {
      return offer.way == way && offer.from == from && offer.name == name;
    });
  };
  events.finish = [this](std::shared_ptr<MessageEntry> entry, Status outcome) {
    Finish(std::move(entry), std::move(outcome));
  };
  return events;
}

// By value: the caller's pointer may lie in a container that the completion changes.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void MessageExchange::Finish(std::shared_ptr<MessageEntry> entry, Status outcome) {
  pending_.fetch_sub(1, std::memory_order_relaxed);
  surroundings_.complete(*entry, std::move(outcome));
}

Status MessageExchange::Send(std::shared_ptr<MessageEntry> entry) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  MessageWay& way = shm_.Reaches(entry->message.peer) ? static_cast<MessageWay&>(shm_) : *links_;
  Status sent = way.Send(std::move(entry));
  if (!sent.ok()) pending_.fetch_sub(1, std::memory_order_relaxed);
  return sent;
}

void MessageExchange::Receive(std::shared_ptr<MessageEntry> entry) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(fresh_mutex_);
  fresh_receives_.push_back(std::move(entry));
  fresh_.store(true, std::memory_order_release);
}

bool MessageExchange::Fits(const MessageEntry& receive, const Offer& offer) {
  return receive.process_set == offer.process_set && receive.message.tag == offer.tag &&
         (receive.message.peer == kAnySource || receive.message.peer == offer.from);
}

void MessageExchange::TakeFresh() {
  for (MessageWay* const way : ways_) way->TakeFresh();
  if (!fresh_.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<MessageEntry>> receives;
  {
    std::lock_guard lock(fresh_mutex_);
    receives.swap(fresh_receives_);
    fresh_.store(false, std::memory_order_relaxed);
  }
  for (auto& entry : receives) {
    bool taken = false;
    for (auto offer = offers_.begin(); !taken && offer != offers_.end();) {
      if (!Fits(*entry, *offer)) {
        ++offer;
        continue;
      }
      taken = offer->way->Take(*offer, entry);
      offer = offers_.erase(offer);
    }
    if (!taken) receives_.push_back(std::move(entry));
  }
}

void MessageExchange::Offered(Offer offer) {
  const auto match =
      std::ranges::find_if(receives_, [&](const auto& receive) { return Fits(*receive, offer); });
  if (match == receives_.end()) {
    offers_.push_back(std::move(offer));
  } else if (offer.way->Take(offer, *match)) {
    receives_.erase(match);
  }
}

void MessageExchange::Visit(const MessageWay::Visitor& visit) const {
  for (const auto& entry : receives_) visit(entry, true);
  for (const MessageWay* const way : ways_) way->Visit(visit);
}

bool MessageExchange::Progress() {
  TakeFresh();
  // Before the mail is taken, so that messages are received that a peer posted before it left.
  std::vector<std::pair<std::shared_ptr<MessageEntry>, Error>> ended;
  int64_t first_deadline = std::numeric_limits<int64_t>::max();
  Visit([&](const std::shared_ptr<MessageEntry>& entry, bool needs_peer) {
    first_deadline = std::min(first_deadline, entry->deadline_ns);
    if (!needs_peer) return;
    if (std::optional<Error> why = surroundings_.ended(*entry))
      ended.emplace_back(entry, std::move(*why));
  });
  bool moved = shm_.Progress();
  for (const auto& [entry, error] : ended) {
    if (entry->complete.load(std::memory_order_relaxed)) continue;
    Cancel(*entry, error);
    moved |= entry->complete.load(std::memory_order_relaxed);
  }
  const bool timed = first_deadline != std::numeric_limits<int64_t>::max();
  return (timed && first_deadline <= NowNs() && EndOverdue()) || moved;
}

bool MessageExchange::EndOverdue() {
  const int64_t now = NowNs();
  std::vector<std::shared_ptr<MessageEntry>> overdue;
  Visit([&](const std::shared_ptr<MessageEntry>& entry, bool) {
    if (entry->deadline_ns <= now) overdue.push_back(entry);
  });
  bool moved = false;
  for (const auto& entry : overdue) {
    entry->deadline_ns = std::numeric_limits<int64_t>::max();  // a peer may still read its memory
    Cancel(*entry, surroundings_.overdue(*entry));
    moved |= entry->complete.load(std::memory_order_relaxed);
  }
  return moved;
}

void MessageExchange::Cancel(MessageEntry& entry, const Error& error) {
  TakeFresh();
  const auto same = [&](const auto& held) { return held.get() == &entry; };
  if (const auto receive = std::ranges::find_if(receives_, same); receive != receives_.end()) {
    std::shared_ptr<MessageEntry> held = std::move(*receive);
    receives_.erase(receive);
    return Finish(std::move(held), error);
  }
  (void)std::ranges::any_of(ways_, [&](MessageWay* way) { return way->Cancel(entry, error); });
}

void MessageExchange::FailAll(const Error& error) {
  TakeFresh();
  std::vector<std::shared_ptr<MessageEntry>> doomed(receives_.begin(), receives_.end());
  receives_.clear();
  offers_.clear();
  for (MessageWay* const way : ways_) {
    const auto dropped = way->Drop();
    doomed.insert(doomed.end(), dropped.begin(), dropped.end());
  }
  for (auto& entry : doomed) Finish(std::move(entry), error);
}

bool MessageExchange::Gives() const {
  return std::ranges::any_of(ways_, [](const MessageWay* way) { return way->Gives(); });
}

}  // namespace horoacc
