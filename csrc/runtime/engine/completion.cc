#include "runtime/engine/completion.h"

#include <utility>

#include "base/futex.h"

namespace horoacc {

// Completes the error, and emits the event of the end.
Status Completion::Begin(const ProcessSet* set, Entry& entry, Status outcome) {
  const bool failed = !outcome.ok();
  if (failed) outcome = failure_.Annotate(std::move(outcome.error()), set, &entry);
  job_.events.Emit(
      failed ? Phase::kError : Phase::kExecuted, entry.process_set, entry.handle,
      set ? set->buckets_run.load(std::memory_order_relaxed) : 0, 0, entry.display_name,
      failed ? std::string_view(outcome.error().message) : std::string_view(), entry.flight);
  return outcome;
}

// A waiter either sees that the entry is complete when it leaves, or was counted out before.
void Completion::RunCallback(Entry& entry) {
  if (entry.waiters.load(std::memory_order_seq_cst) > 0) return;
  if (auto done = entry.TakeCallback()) job_.callbacks.Post(std::move(done));
}

void Completion::Complete(ProcessSet& set,
                          std::span<const std::shared_ptr<CollectiveEntry>> entries,
                          const Status& outcome) {
  for (const auto& entry : entries) {
    for (EntryTensor& tensor : entry->tensors) {
      if (tensor.staged) job_.blocks.Free(std::exchange(tensor.staged, nullptr));
    }
    if (entry->device) entry->device->Release();
    // Of a call that was decided the driver frees it, once no peer can read it any more.
    if (entry->extra && !entry->decided) job_.blocks.Free(std::exchange(entry->extra, nullptr));
    entry->outcome = Begin(&set, *entry, outcome);
  }
  Status published;
  {
    std::lock_guard lock(set.queue.mutex);
    for (const auto& entry : entries) {
      set.queue.in_flight.Erase(*entry);
      if (entry->reservation) --entry->reservation->calls;
      entry->complete.store(true, std::memory_order_seq_cst);
      set.queue.Leave();
    }
    if (!set.queue.backlog.empty()) {
      published = publisher_.PublishBacklog(set);
      if (published.ok()) published = Publisher::AnnounceJoin(set);
    }
  }
  if (!published.ok()) failure_.Abort(published.error());
  WakeWaiters();
  for (const auto& entry : entries) RunCallback(*entry);
}

void Completion::Complete(ProcessSet& set, JoinEntry& entry, Status outcome) {
  outcome = Begin(&set, entry, std::move(outcome));
  {
    std::lock_guard lock(set.queue.mutex);
    entry.outcome = std::move(outcome);
    entry.complete.store(true, std::memory_order_seq_cst);
    set.queue.Leave();
  }
  WakeWaiters();
  RunCallback(entry);
}

void Completion::Complete(MessageEntry& entry, Status outcome) {
  entry.outcome = Begin(nullptr, entry, std::move(outcome));
  entry.complete.store(true, std::memory_order_seq_cst);
  WakeWaiters();
  RunCallback(entry);
}

void Completion::WakeWaiters() {
  completed_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) > 0) FutexWakeAll(completed_);
}

void Completion::Await(const Entry& entry, int64_t timeout_ns) {
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = completed_.load(std::memory_order_seq_cst);
  if (!entry.complete.load(std::memory_order_acquire)) FutexWait(completed_, seen, timeout_ns);
  waiting_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace horoacc
