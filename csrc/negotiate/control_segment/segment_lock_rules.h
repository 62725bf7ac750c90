#pragma once
// How ranks take a lock of the control segment, wait for it and give it back, when its owner may
// die, stop or throw. Templates over what they touch: a model check runs them over all
// interleavings (tests/cpp/model/lock_model.h).
#include <atomic>
#include <cstdint>

namespace horoacc::segment_lock {

enum class Turn { kTaken, kWait, kAborted, kOwnerDied };

/// One attempt of the rank with local rank `me`.
template <typename Owner>
Turn Try(Owner&& owner, uint32_t me) {
  uint32_t free = 0;
  return owner.compare_exchange_weak(free, me + 1, std::memory_order_acquire) ? Turn::kTaken
                                                                              : Turn::kWait;
}

/// Why a rank that has waited for a while need not wait any longer. `*dead`: the owner that died,
/// by local rank.
template <typename Owner, typename Aborted, typename Alive>
Turn LookAround(Owner&& owner, const Aborted& has_aborted, const Alive& alive, uint32_t* dead) {
  if (has_aborted()) return Turn::kAborted;
  const uint32_t holder = owner.load(std::memory_order_seq_cst);
  if (holder == 0 || alive(holder - 1)) return Turn::kWait;
  // It may have given the lock back between the two looks, and ended in order.
  if (owner.load(std::memory_order_seq_cst) != holder) return Turn::kWait;
  if (has_aborted()) return Turn::kAborted;  // by its exception
  *dead = holder - 1;
  return Turn::kOwnerDied;
}

/// `thrown`: an exception has left what the lock protects half changed. Then no rank gets the lock
/// any more, and the abort ends all waiting for it.
template <typename Owner, typename Abort>
void GiveBack(Owner&& owner, bool thrown, const Abort& abort) {
  if (thrown) return abort();
  owner.store(0, std::memory_order_release);
}

}  // namespace horoacc::segment_lock
