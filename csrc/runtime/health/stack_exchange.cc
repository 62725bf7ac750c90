#include "runtime/health/stack_exchange.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kAnswerTimeout = kSecond;
constexpr int64_t kAskEvery = kSecond;
constexpr size_t kMostAsked = 8;

using Text = std::atomic<char>[kStackText];

void Write(Text& shared, std::string_view text) {
  for (size_t k = 0; k < kStackText; ++k)
    shared[k].store(k < text.size() ? text[k] : '\0', std::memory_order_relaxed);
}

std::string Read(const Text& shared) {
  std::string text;
  for (const std::atomic<char>& letter : shared) {
    const char read = letter.load(std::memory_order_relaxed);
    if (read == '\0') break;
    text += read;
  }
  return text;
}

// What the other ranks wait for.
std::string LackingHere(const Job& job) {
  std::string text;
  for (const OpenBucket& bucket : job.plans_state().open) {
    if (bucket.others == Calls::Others::kSubmitted)
      text += (text.empty() ? "" : ", ") + bucket.lacks;
  }
  return text;
}

}  // namespace

void StackExchange::Answer() {
  if (job_.multi_host) job_.multi_host->channel().questions().Answer();
  RankState& state = job_.own_state();
  const uint32_t wanted = state.stack_wanted.load(std::memory_order_acquire);
  if (state.stack_given.load(std::memory_order_relaxed) == wanted) return;
  Write(state.stack, MainStackOf(job_.stacks.Take()));
  Write(state.lacks, LackingHere(job_));
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
  if (!HasAnswered(rank)) return std::nullopt;
  return Read(job_.control.state(local).stack);
}

// Of a rank of this host.
bool StackExchange::HasAnswered(int rank) {
  std::lock_guard lock(mutex_);
  const RankState& state = job_.control.state(job_.LocalOf(rank));
  const uint32_t given = state.stack_given.load(std::memory_order_acquire);
  const uint32_t asked = asked_[rank].number;
  return asked != 0 && static_cast<int32_t>(given - asked) >= 0;
}

// Of a rank of this host: others tell their stacks alone.
std::string StackExchange::LacksOf(int rank) {
  const uint32_t local = job_.LocalOf(rank);
  if (local == job_.share.ranks.size() || !HasAnswered(rank)) return "";
  return Read(job_.control.state(local).lacks);
}

std::string StackExchange::Lacking(const std::vector<int>& ranks) {
  std::string shown;
  for (const int rank : std::span(ranks.data(), std::min(ranks.size(), kMostAsked))) {
    const std::string lacks = LacksOf(rank);
    if (!lacks.empty()) shown += "; rank " + std::to_string(rank) + " lacks " + lacks;
  }
  return shown;
}

std::string StackExchange::Describe(const std::vector<int>& ranks) {
  std::string shown;
  for (const int rank : std::span(ranks.data(), std::min(ranks.size(), kMostAsked))) {
    const std::optional<std::string> stack = StackOf(rank);
    const std::string name = "; rank " + std::to_string(rank);
    if (!stack) shown += name + " does not answer";
    if (stack && !stack->empty()) shown += name + " is in " + *stack;
  }
  return shown + Lacking(ranks);
}

}  // namespace horoacc
