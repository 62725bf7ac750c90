#include "negotiate/multi_host/direct_exchange.h"

namespace horoacc {

bool DirectExchange::Fits(const CallName& call, const ReadySet& ready_set, size_t members,
                          const CallNumbers& numbers) {
  if (!ready_set.GivesAll(members) || ready_set.groups().size() != 1) return false;
  const uint64_t* const number = numbers.NumberOf(call);
  return number && *numbers.At(*number)->request == *ready_set.groups()[0].request;
}

std::optional<ReadySet> DirectExchange::Offer(Side side, const CallName& call,
                                              const ReadySet& ready_set) {
  const auto found = offers_.find(call);
  if (found == offers_.end() || found->second.first == side) {
    offers_.insert_or_assign(call, std::pair(side, ready_set));
    return std::nullopt;
  }
  ReadySet both = std::move(found->second.second);
  offers_.erase(found);
  if (!both.Add(ready_set) || both.groups().size() != 1) return std::nullopt;
  return both;
}

}  // namespace horoacc
