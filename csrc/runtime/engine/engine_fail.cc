// The end of calls that will never be decided, and of everything when the job is over.
#include "runtime/engine/engine.h"

namespace horoacc {

// What waits here without having been decided, which nothing will decide any more.
std::vector<std::shared_ptr<Entry>> Engine::TakeUndecided(ProcessSet& set) {
  SetQueue& queue = set.queue;
  std::lock_guard lock(queue.mutex);
  std::vector<std::shared_ptr<Entry>> undecided;
  for (const uint32_t id : queue.in_flight.ids()) {
    const auto entry = queue.in_flight.Find(id);
    if (entry && !entry->decided) undecided.push_back(entry);
  }
  undecided.insert(undecided.end(), queue.backlog.begin(), queue.backlog.end());
  undecided.insert(undecided.end(), queue.arriving.begin(), queue.arriving.end());
  undecided.insert(undecided.end(), queue.joins.begin(), queue.joins.end());
  queue.backlog.clear();
  arriving_.fetch_sub(static_cast<uint32_t>(queue.arriving.size()), std::memory_order_relaxed);
  queue.arriving.clear();
  queue.joins.clear();
  return undecided;
}

void Engine::FailUndecided(ProcessSet& set, const Error& error) {
  for (const auto& entry : TakeUndecided(set)) Complete(set, *entry, error);
}

void Engine::Abort(const Error& error) {
  if (AbortHere(error) && multi_host_) multi_host_->TellAbort(error);
}

// Who drives may find a link closed whose other end was told earlier why the job is over: what has
// arrived says it, and names whose fault it was.
void Engine::AbortUnlessTold(const Error& error) {
  if (error.kind == ErrorKind::kPeerLost && multi_host_) {
    for (int looks = 0; looks < placement_.size; ++looks) {
      const Result<bool> heard = mux_->Pump();
      if (heard.ok() && !heard.value()) break;
    }
  }
  Abort(error);
}

// On this host. True if it was the first to say so.
bool Engine::AbortHere(const Error& error) {
  const bool first = control_.Abort(error);
  if (first) log_.Write(LogLevel::kError, "the job is aborted: " + error.message);
  for (size_t l = 0; l < share_.ranks.size(); ++l)
    doorbells_.Ring(static_cast<int>(l), Urgency::kWork);
  return first;
}

void Engine::FailAll(const Error& error) {
  bool first = false;
  {
    std::lock_guard lock(failure_mutex_);
    first = !failure_;
    if (first) failure_ = error;
  }
  if (first && control_.aborted().kind != ErrorKind::kOk) RecordFlight(error.message, !multi_host_);
  messages_->FailAll(error);
  // Not as this rank shuts down in good order: what others have yet to read of it they may.
  if (multi_host_ && control_.aborted().kind != ErrorKind::kOk) multi_host_->Abort(error);
  const auto driven = DrivenSets();
  // Executions end here: from now on this rank touches no peer's memory.
  for (const auto& set : driven) {
    set->current.reset();
    set->draining.clear();
    // A caller that announces may be reducing as the last to arrive: wait until it has.
    std::lock_guard announced(set->queue.mutex);
  }
  control_.state(share_.local_rank).abort_seen.store(1, std::memory_order_release);
  for (const auto& set : driven) {
    std::vector<std::shared_ptr<Entry>> doomed = TakeUndecided(*set);
    {
      std::lock_guard lock(set->queue.mutex);
      for (const uint32_t id : set->queue.in_flight.ids()) {
        if (auto entry = set->queue.in_flight.Find(id); entry->decided)
          doomed.push_back(std::move(entry));
      }
    }
    for (const auto& entry : doomed) Complete(*set, *entry, error);
  }
}

}  // namespace horoacc
