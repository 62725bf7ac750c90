#include "runtime/job/shared_blocks.h"

#include <utility>

#include "runtime/job/job.h"

namespace horoacc {

void* SharedBlocks::Allocate(size_t bytes) { return job_.arena->Allocate(bytes); }

void SharedBlocks::Free(void* memory) {
  if (job_.control.header().abort_word.load(std::memory_order_acquire) == 0)
    return job_.arena->Free(memory);
  {
    std::lock_guard lock(mutex_);
    quarantine_.push_back(memory);
  }
  EmptyQuarantine();
}

bool SharedBlocks::AllStopped() const {
  for (uint32_t l = 0; l < job_.share.ranks.size(); ++l) {
    if (job_.control.state(l).abort_seen.load(std::memory_order_acquire) != 0) continue;
    if (job_.HasLeft(l)) continue;
    // A rank that is a thread of this process has not stopped before it says so.
    if (!job_.share.pidfds[l] || job_.IsAlive(l)) return false;
  }
  return true;
}

void SharedBlocks::EmptyQuarantine() {
  std::vector<void*> freed;
  {
    std::lock_guard lock(mutex_);
    if (quarantine_.empty() || !AllStopped()) return;
    freed.swap(quarantine_);
  }
  FreeAll(freed);
}

void SharedBlocks::DropQuarantine() {
  std::vector<void*> freed;
  {
    std::lock_guard lock(mutex_);
    freed.swap(quarantine_);
  }
  FreeAll(freed);
}

void SharedBlocks::FreeAll(std::vector<void*>& blocks) const {
  for (void* memory : blocks) job_.arena->Free(memory);
}

}  // namespace horoacc
