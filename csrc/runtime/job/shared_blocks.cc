#include "runtime/job/shared_blocks.h"

#include <algorithm>
#include <utility>

#include "runtime/job/job.h"
#include "runtime/job/quarantine_rules.h"

namespace horoacc {

void* SharedBlocks::Allocate(size_t bytes) { return job_.arena->Allocate(bytes); }

void SharedBlocks::Free(void* memory) {
  quarantine::GiveBack([this] { return job_.aborted(); }, [&] { job_.arena->Free(memory); },
                       [&] {
                         {
                           std::lock_guard lock(mutex_);
                           quarantine_.push_back(memory);
                         }
                         EmptyQuarantine();
                       });
}

bool SharedBlocks::AllStopped() const {
  struct Rank {
    const Job& job;
    uint32_t local;
    [[nodiscard]] bool has_noted() const {
      return job.control.state(local).abort_seen.load(std::memory_order_acquire) != 0;
    }
    [[nodiscard]] bool has_left() const { return job.HasLeft(local); }
    // A rank that is a thread of this process has not stopped before it says so.
    [[nodiscard]] bool is_dead() const { return job.share.pidfds[local] && !job.IsAlive(local); }
  };
  for (uint32_t local = 0; local < job_.share.ranks.size(); ++local) {
    if (!quarantine::HasStopped(Rank{job_, local})) return false;
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

void SharedBlocks::End() {
  quarantine::End([this] { job_.arena->StopAllocating(); },
                  [this] {
                    std::vector<void*> freed;
                    {
                      std::lock_guard lock(mutex_);
                      freed.swap(quarantine_);
                    }
                    FreeAll(freed);
                  });
}

void SharedBlocks::FreeAll(std::vector<void*>& blocks) const {
  for (void* memory : blocks) job_.arena->Free(memory);
}

}  // namespace horoacc
