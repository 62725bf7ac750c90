#pragma once
// The order in which a sleeping thread and the thread that rings touch a doorbell. Templates over
// what they touch: a model check runs them over all interleavings
// (tests/cpp/model/doorbell_model.h).
//
// Store-then-load on both sides (ring: bump the count, then look for sleepers; sleep: announce,
// then look at the count) needs sequential consistency, or both could miss each other. A ringer
// clears the announcement, perhaps one made after its ring: so the sleeper waits on the
// announcement, because the count would not change again.
#include <atomic>
#include <cstdint>

namespace horoacc::doorbell {

/// The values of an announcement.
inline constexpr uint32_t kAwake = 0;
inline constexpr uint32_t kOnFutex = 1;
inline constexpr uint32_t kInPoll = 2;

/// Announces in `announced` how this thread sleeps, then calls `sleep`, unless `word` is not `seen`
/// any more. `sleep` returns at once if it is to wait on a futex and the announcement is gone.
template <typename Announced, typename Word, typename Sleep>
void SleepOn(Announced&& announced, const Word& word, uint32_t seen, uint32_t how, Sleep sleep) {
  announced.store(how, std::memory_order_seq_cst);
  if (word.load(std::memory_order_seq_cst) == seen) sleep();
  announced.store(kAwake, std::memory_order_seq_cst);
}

/// Wakes the thread that has announced that it sleeps, if there is one: `wake(announced, how)`.
template <typename Announced, typename Wake>
void WakeFrom(Announced&& announced, Wake wake) {
  if (announced.load(std::memory_order_seq_cst) == kAwake) return;
  const uint32_t how = announced.exchange(kAwake, std::memory_order_seq_cst);
  if (how != kAwake) wake(announced, how);
}

template <typename Bell, typename Wake>
void WakeCoordinator(Bell&& bell, Wake wake) {
  bell.coordinator_word.fetch_add(1, std::memory_order_seq_cst);
  WakeFrom(bell.coordinator, wake);
}

/// `work`: the rank must take part, so that its coordinator is woken if no caller drives.
template <typename Bell, typename Wake>
void Ring(Bell&& bell, bool work, Wake wake) {
  bell.count.fetch_add(1, std::memory_order_seq_cst);
  WakeFrom(bell.waiter, wake);
  if (work && bell.driven.load(std::memory_order_seq_cst) == 0) WakeCoordinator(bell, wake);
}

}  // namespace horoacc::doorbell
