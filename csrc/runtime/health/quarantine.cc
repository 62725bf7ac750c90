// Blocks of shared memory that are freed while a slow peer might still write to them.
#include <poll.h>

#include "runtime/engine/engine.h"

namespace horoacc {

void* Engine::AllocateShared(size_t bytes) { return arena_->Allocate(bytes); }

// After an abort a stopped or slow peer may still write into blocks of the collective in flight:
// until all have seen the abort (or are dead) such memory is not used again.
void Engine::FreeShared(void* memory) {
  if (control_.header().abort_word.load(std::memory_order_acquire) == 0) {
    arena_->Free(memory);
    return;
  }
  {
    std::lock_guard lock(quarantine_mutex_);
    quarantine_.push_back(memory);
  }
  EmptyQuarantine();
}

bool Engine::AllStopped() const {
  for (size_t l = 0; l < share_.ranks.size(); ++l) {
    const RankState& state = control_.state(l);
    if (state.abort_seen.load(std::memory_order_acquire) != 0) continue;
    if (static_cast<RankPhase>(state.phase.load()) == RankPhase::kLeft) continue;
    if (!share_.pidfds[l]) return false;
    pollfd watched{share_.pidfds[l]->get(), POLLIN, 0};
    if (::poll(&watched, 1, 0) <= 0) return false;
  }
  return true;
}

void Engine::EmptyQuarantine() {
  std::vector<void*> freed;
  {
    std::lock_guard lock(quarantine_mutex_);
    if (quarantine_.empty() || !AllStopped()) return;
    freed.swap(quarantine_);
  }
  for (void* memory : freed) arena_->Free(memory);
}

}  // namespace horoacc
