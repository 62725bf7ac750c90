#include "runtime/health/stack_exchange.h"

#include <algorithm>
#include <span>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kAnswerTimeout = kSecond;
constexpr int64_t kAskEvery = kSecond;
constexpr size_t kMostAsked = 8;

}  // namespace

void StackExchange::Answer() {
  if (job_.multi_host) job_.multi_host->channel().questions().Answer();
  RankState& state = job_.own_state();
  const uint32_t wanted = state.stack_wanted.load(std::memory_order_acquire);
  if (state.stack_given.load(std::memory_order_relaxed) == wanted) return;
  const std::string text = MainStackOf(job_.stacks.Take());
  for (size_t k = 0; k < kStackText; ++k)
    state.stack[k].store(k < text.size() ? text[k] : '\0', std::memory_order_relaxed);
  state.stack_given.store(wanted, std::memory_order_release);
}

bool StackExchange::HasAnswersOf(const std::vector<int>& ranks, CollectiveEntry& entry) {
  const std::span asked(ranks.data(), std::min(ranks.size(), kMostAsked));
  if (entry.stacks_asked_ns == 0) {
    entry.stacks_asked_ns = NowNs();
    for (const int rank : asked) Ask(rank);
    return false;
  }
  return NowNs() - entry.stacks_asked_ns > kAnswerTimeout ||
         std::ranges::all_of(asked, [this](int rank) { return StackOf(rank).has_value(); });
}

void StackExchange::Ask(int rank) {
  const int64_t now = NowNs();
  {
    std::lock_guard lock(mutex_);
    int64_t& at = asked_[rank].at_ns;
    if (at != 0 && now - at < kAskEvery) return;
    at = now;
  }
  const uint32_t local = job_.LocalOf(rank);
  if (local == job_.share.ranks.size())
    return job_.multi_host->channel().questions().Ask(rank, RankQuestion::kStack);
  const uint32_t number = job_.control.state(local).stack_wanted.fetch_add(1) + 1;
  {
    std::lock_guard lock(mutex_);
    asked_[rank].number = number;
  }
  job_.doorbells.WakeCoordinator(static_cast<int>(local));
}

std::optional<std::string> StackExchange::StackOf(int rank) {
  const uint32_t local = job_.LocalOf(rank);
  if (local == job_.share.ranks.size())
    return job_.multi_host->channel().questions().AnswerOf(rank, RankQuestion::kStack);
  const RankState& state = job_.control.state(local);
  {
    std::lock_guard lock(mutex_);
    const uint32_t given = state.stack_given.load(std::memory_order_acquire);
    if (static_cast<int32_t>(given - asked_[rank].number) < 0) return std::nullopt;
  }
  std::string text;
  for (const std::atomic<char>& letter : state.stack) {
    const char read = letter.load(std::memory_order_relaxed);
    if (read == '\0') break;
    text += read;
  }
  return text;
}

std::string StackExchange::Describe(const std::vector<int>& ranks) {
  std::string shown;
  for (const int rank : std::span(ranks.data(), std::min(ranks.size(), kMostAsked))) {
    const std::optional<std::string> stack = StackOf(rank);
    const std::string name = "; rank " + std::to_string(rank);
    if (!stack) shown += name + " does not answer";
    if (stack && !stack->empty()) shown += name + " is in " + *stack;
  }
  return shown;
}

}  // namespace horoacc
