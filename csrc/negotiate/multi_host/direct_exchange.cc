#include "negotiate/multi_host/direct_exchange.h"

#include <algorithm>

namespace horoacc {

bool DirectExchange::Fits(const CallName& call, const ReadySet& ready_set, size_t members,
                          const CallNumbers& numbers) {
  if (ready_set.count() != members || ready_set.groups().size() != 1) return false;
  const Request& request = *ready_set.groups()[0].request;
  if (request.collective == Collective::kBarrier) return request.local_error.empty();
  if (!ready_set.GivesAll(members)) return false;
  if (!call.named) return true;
  const uint64_t* const number = numbers.NumberOf(call);
  return number && *numbers.At(*number)->request == request;
}

std::optional<ReadySet> DirectExchange::Offer(Side side, const CallName& call,
                                              const ReadySet& ready_set) {
  const auto found = offers_.find(call);
  if (found == offers_.end() || found->second.side == side) {
    offers_.insert_or_assign(call, Offered{side, ready_set, 0});
    return std::nullopt;
  }
  ReadySet both = std::move(found->second.ready_set);
  offers_.erase(found);
  if (!both.Add(ready_set) || both.groups().size() != 1) return std::nullopt;
  return both;
}

bool DirectExchange::HasOffered(const CallName& call) const {
  const auto found = offers_.find(call);
  return found != offers_.end() && found->second.side == Side::kOwn;
}

bool DirectExchange::HasOffered() const {
  return std::ranges::any_of(offers_,
                             [](const auto& one) { return one.second.side == Side::kOwn; });
}

std::optional<uint64_t> DirectExchange::Withdraw(const CallName& call) {
  uint64_t& question = offers_.at(call).question;
  if (question != 0) return std::nullopt;
  return question = ++questions_;
}

bool DirectExchange::IsGivenBack(const CallName& call, uint64_t question) const {
  return HasOffered(call) && offers_.at(call).question == question;
}

bool DirectExchange::GiveBack(const CallName& call) {
  const auto found = offers_.find(call);
  if (found == offers_.end() || found->second.side == Side::kOwn) return false;
  offers_.erase(found);
  return true;
}

}  // namespace horoacc
