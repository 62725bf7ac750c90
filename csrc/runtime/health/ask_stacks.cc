// Where the ranks are that others wait for: asked over the control segment, or between hosts by
// message, and answered by whatever thread of theirs looks first.
#include <algorithm>

#include "base/clock.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kPatience = kSecond;
constexpr size_t kMostAsked = 8;

}  // namespace

void Engine::AnswerForStack() {
  RankState& state = control_.state(share_.local_rank);
  const uint32_t wanted = state.stack_wanted.load(std::memory_order_acquire);
  if (state.stack_given.load(std::memory_order_relaxed) == wanted) return;
  const std::string text = MainStackOf(stacks_.Take());
  for (size_t k = 0; k < kStackText; ++k)
    state.stack[k].store(k < text.size() ? text[k] : '\0', std::memory_order_relaxed);
  state.stack_given.store(wanted, std::memory_order_release);
}

// Asks once for a call, and says whether the answers are there, or late.
bool Engine::HasStacksOf(const std::vector<int>& ranks, Entry& entry) {
  const std::span asked(ranks.data(), std::min(ranks.size(), kMostAsked));
  if (entry.stacks_asked_ns == 0) {
    entry.stacks_asked_ns = NowNs();
    for (const int rank : asked) AskForStack(rank);
    return false;
  }
  return NowNs() - entry.stacks_asked_ns > kPatience ||
         std::ranges::all_of(asked, [this](int rank) { return StackOf(rank).has_value(); });
}

void Engine::AskForStack(int rank) {
  if (multi_host_) return multi_host_->AskForStack(rank);
  const auto local = static_cast<int>(std::ranges::find(share_.ranks, rank) - share_.ranks.begin());
  const uint32_t ticket = control_.state(local).stack_wanted.fetch_add(1) + 1;
  {
    std::lock_guard lock(tickets_mutex_);
    tickets_[rank] = ticket;
  }
  doorbells_.WakeCoordinator(local);
}

std::optional<std::string> Engine::StackOf(int rank) {
  if (multi_host_) return multi_host_->StackOf(rank);
  const auto local =
      static_cast<uint32_t>(std::ranges::find(share_.ranks, rank) - share_.ranks.begin());
  const RankState& state = control_.state(local);
  {
    std::lock_guard lock(tickets_mutex_);
    const uint32_t given = state.stack_given.load(std::memory_order_acquire);
    if (static_cast<int32_t>(given - tickets_[rank]) < 0) return std::nullopt;
  }
  std::string text;
  for (const std::atomic<char>& letter : state.stack) {
    const char read = letter.load(std::memory_order_relaxed);
    if (read == '\0') break;
    text += read;
  }
  return text;
}

// "; rank 1 is in load (data.py:20) < <module> (train.py:7)"
std::string Engine::ShowStacks(const std::vector<int>& ranks) {
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
