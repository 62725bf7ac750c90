#include "negotiate/multi_host/subtree_aggregator.h"

#include <algorithm>
#include <utility>

namespace horoacc {

bool SubtreeAggregator::Complete(const Pending& pending) const {
  const size_t here = pending.ready_set.count() + pending.sent.count();
  if (here == members_.size()) return true;
  if (here + joined_.size() < members_.size()) return false;
  return std::ranges::all_of(members_, [&](uint32_t member) {
    return pending.ready_set.Has(member) || pending.sent.Has(member) ||
           std::ranges::find(joined_, member) != joined_.end();
  });
}

// Takes the members that were not sent yet, and counts them as sent.
std::optional<SubtreeAggregator::News> SubtreeAggregator::Take(const CallName& call,
                                                               Pending& pending) const {
  if (pending.ready_set.count() == 0) return std::nullopt;
  News news{call, std::exchange(pending.ready_set, {}), false};
  news.whole = news.ready_set.count() == members_.size() && news.ready_set.groups().size() == 1;
  (void)pending.sent.Add(news.ready_set);
  return news;
}

SubtreeAggregator::Arrived SubtreeAggregator::Arrive(const CallName& call, const ReadySet& from,
                                                     int64_t now_ns) {
  Arrived arrived;
  const auto [found, fresh] = pending_.try_emplace(call);
  Pending& pending = found->second;
  if (fresh) pending.since_ns = now_ns;
  for (const ReadySet::Group& group : from.groups()) {
    if (std::ranges::any_of(group.members, [&](uint32_t m) { return pending.sent.Has(m); }))
      arrived.fits = false;
  }
  if (!arrived.fits || !pending.ready_set.Add(from)) return {false, std::nullopt};
  const bool complete = Complete(pending);
  if (complete || pending.open) arrived.news = Take(call, pending);
  if (complete) pending_.erase(found);
  return arrived;
}

std::vector<SubtreeAggregator::News> SubtreeAggregator::Join(uint32_t member) {
  joined_.push_back(member);
  std::vector<News> all;
  for (auto one = pending_.begin(); one != pending_.end();) {
    auto& [call, pending] = *one;
    if (!Complete(pending)) {
      ++one;
      continue;
    }
    if (std::optional<News> news = Take(call, pending)) all.push_back(std::move(*news));
    one = pending_.erase(one);
  }
  return all;
}

std::optional<SubtreeAggregator::News> SubtreeAggregator::Flush(const CallName& call) {
  const auto found = pending_.find(call);
  if (found == pending_.end()) return std::nullopt;
  found->second.open = true;
  return Take(call, found->second);
}

bool SubtreeAggregator::Holds() const {
  return std::ranges::any_of(pending_, [](const auto& one) { return !one.second.open; });
}

std::vector<SubtreeAggregator::News> SubtreeAggregator::FlushOld(int64_t now_ns) {
  std::vector<News> all;
  for (auto& [call, pending] : pending_) {
    if (pending.open || now_ns - pending.since_ns < timeout_ns_) continue;
    pending.open = true;
    if (std::optional<News> news = Take(call, pending)) all.push_back(std::move(*news));
  }
  return all;
}

}  // namespace horoacc
