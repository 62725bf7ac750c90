// Ranks that have run out of data: how a rank joins, and what its callers get in the end.
#include <cstring>

#include "runtime/engine/assemble_exchange.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

Status PutLastRank(EntryTensor& result, int32_t last) {
  HA_TRY(AllocateOutput(result, sizeof last));
  std::memcpy(result.output, &last, sizeof last);
  return {};
}

}  // namespace

// This rank joins after all that it has submitted before. Under the queue's lock.
Status Engine::AnnounceJoin(ProcessSet& set) {
  SetQueue& queue = set.queue;
  if (queue.joins.empty() || queue.join_announced) return {};
  if (!queue.backlog.empty() || !queue.arriving.empty()) return {};
  queue.join_announced = true;
  return set.controller->Join(queue.unnamed);
}

// A caller was called away from a join, and is back: the others do not join a second time. Under
// the queue's lock.
Result<uint64_t> Engine::TakeOverJoin(SetQueue& queue, Entry& entry) {
  entry.join_over = std::move(queue.join_over);
  queue.join_over.reset();
  entry.outcome = PutLastRank(entry.tensors[0], entry.join_over->last);
  entry.complete.store(true, std::memory_order_release);
  if (auto done = entry.TakeCallback()) completion_.Post(std::move(done));
  return entry.handle;
}

// All ranks have joined: they submit again, and number their unnamed calls alike.
Status Engine::EndJoin(ProcessSet& set, std::unique_ptr<Running> running) {
  const Decision& decision = running->decision;
  const auto over = std::make_shared<JoinOver>();
  over->last = static_cast<int32_t>(decision.last_joined);
  {
    std::lock_guard lock(set.queue.mutex);
    running->entries.swap(set.queue.joins);
    set.queue.join_announced = false;
    set.queue.join_over = over;
    set.queue.unnamed = std::max(set.queue.unnamed, decision.unnamed);
  }
  for (const auto& entry : running->entries) {
    entry->join_over = over;
    HA_TRY(PutLastRank(entry->tensors[0], over->last));
    events_.Emit(Phase::kNegotiated, set.id, entry->handle, set.buckets_run, 0, entry->display_name,
                 {}, entry->flight);
    Complete(set, *entry, {});
  }
  set.draining.push_back(std::move(running));
  return Drain(set);
}

}  // namespace horoacc
