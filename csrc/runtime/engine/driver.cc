#include "runtime/engine/driver.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "negotiate/decider.h"
#include "runtime/engine/assemble_exchange.h"
#include "runtime/job/quarantine_rules.h"

namespace horoacc {
namespace {

constexpr int kStepsPerTurn = 256;  // decisions, and bounded pieces of executions, of one set
constexpr int kStepsPerClock = 8;   // of them between looks at the clock
constexpr int64_t kLongestTurn = 2 * kMillisecond;

// The calls that wait here without having been decided, which no rank will decide any more.
struct Undecided {
  std::vector<std::shared_ptr<CollectiveEntry>> calls;
  std::vector<std::shared_ptr<JoinEntry>> joins;
};

Undecided TakeUndecided(Job& job, ProcessSet& set) {
  SetQueue& queue = set.queue;
  std::lock_guard lock(queue.mutex);
  Undecided found;
  for (const uint32_t id : queue.in_flight.ids()) {
    auto entry = queue.in_flight.Find(id);
    if (!entry->decided && !entry->begun) found.calls.push_back(std::move(entry));
  }
  found.calls.insert(found.calls.end(), queue.backlog.begin(), queue.backlog.end());
  found.calls.insert(found.calls.end(), queue.pending_copies.begin(), queue.pending_copies.end());
  job.gpu_polls.fetch_sub(static_cast<uint32_t>(queue.pending_copies.size()),
                          std::memory_order_relaxed);
  found.joins.swap(queue.joins);
  queue.backlog.clear();
  queue.pending_copies.clear();
  return found;
}

// Not in the backlog behind another call of its id.
bool IsPublished(ProcessSet& set, const CollectiveEntry& entry) {
  std::lock_guard lock(set.queue.mutex);
  return set.queue.in_flight.Find(entry.id).get() == &entry;
}

// Of all ranks with the call `index` of a decision; all find the same: their rows stay until all
// have carried out the decision.
Proposal ProposalOfAll(const ProcessSet& set, const Decision& decision, size_t index,
                       const CollectiveEntry& entry) {
  if (decision.kind != Decision::Kind::kRun || decision.partial) return {};
  if (set.multi_host) {
    const Proposal& all = decision.facts[index].proposal;
    std::atomic<uint64_t>& behind = set.control->id(entry.id).behind;
    if (all.number > entry.generation + behind.load()) behind.store(all.number - entry.generation);
    return all;
  }
  Proposal all = entry.proposal;
  for (uint32_t r = 0; all.plan != 0 && r < set.context.ranks; ++r) {
    const Row& row = set.control->row(r, entry.id, entry.generation);
    all = all.With(row.proposes != 0 ? row.proposal : Proposal());
  }
  return all;
}

}  // namespace

// Ends a turn of the loop by count and by the clock, which a turn of few steps does not read.
class Driver::Turn {
 public:
  [[nodiscard]] bool IsOver() {
    if (++steps_ % kStepsPerClock != 0) return false;
    if (steps_ >= kStepsPerTurn) return true;
    const int64_t now = NowNs();
    if (over_ns_ == 0) over_ns_ = now + kLongestTurn;
    return now >= over_ns_;
  }

 private:
  int steps_ = 0;
  int64_t over_ns_ = 0;
};

Driver::Lock::Lock(Driver& driver, Holder holder)
    : driver_(driver), holder_(holder), lock_(driver.mutex_) {}

Driver::Lock::Lock(Driver& driver, Holder holder, std::try_to_lock_t)
    : driver_(driver), holder_(holder), lock_(driver.mutex_, std::try_to_lock) {}

Driver::Lock::~Lock() {
  if (!held()) return;
  Job& job = driver_.job_;
  bool wake = false;
  try {
    wake = holder_ == Holder::kCaller && driver_.WorkLeft();
    lock_.unlock();
    driver_.parts_.completion.WakeWaiters();
    if (holder_ == Holder::kCoordinator) return;
    const Doorbell& doorbell = job.doorbells.doorbell(job.local_rank());
    const bool rung = !seen_ || doorbell.count.load(std::memory_order_seq_cst) != *seen_;
    // A caller that calls again and again wakes no thread in between: see Coordinator.
    const bool was_long = since_ns_ != 0 && NowNs() - since_ns_ >= kShortDrive;
    wake = wake || (rung && driver_.AnythingPending()) ||
           (was_long && job.doorbells.CoordinatorIsDeaf(job.local_rank()));
  } catch (const std::exception&) {  // out of memory: the coordinator finds out what is left
    wake = true;
  }
  if (wake) job.WakeCoordinator();
}

void Driver::LookOnce() {
  {
    Lock lock(*this, Lock::Holder::kCaller, std::try_to_lock);
    if (lock.held()) return (void)lock.Progress();
  }
  job_.RingOwn(Urgency::kWork);
}

bool Driver::ProgressOrAbort() {
  try {
    return Progress();
  } catch (const std::exception& thrown) {
    (void)parts_.failure.AbortThrown(thrown.what());
    return false;  // the abort has rung: the next turn ends the calls
  }
}

bool Driver::Progress() {
  if (released_) return false;
  if (job_.aborted()) {
    FailAll(job_.control.aborted());
    if (job_.multi_host) job_.multi_host->channel().TellAbort(job_.control.aborted());
    if (job_.mux && job_.mux->HasUnsent()) (void)job_.mux->Pump();  // others wait for the news
    return false;
  }
  const auto abort = [this](const Error& error) {
    parts_.failure.AbortUnlessTold(error);
    return true;
  };
  if (const Status ended = EndGivenUp(); !ended.ok()) return abort(ended.error());
  const Result<bool> linked = ProgressLinks();
  if (!linked.ok()) return abort(linked.error());
  bool moved = linked.value() | parts_.messages.exchange().Progress();
  bool runs = false;
  for (const auto& set : parts_.sets.Driven()) {
    const Result<bool> advanced = ProgressSet(*set);
    if (!advanced.ok()) return abort(advanced.error());
    if (advanced.value()) set->moves.fetch_add(1, std::memory_order_relaxed);
    moved |= advanced.value();
    runs |= set->runs() && set->multi_host;
  }
  runs_between_hosts_ = runs;
  // What is left over goes now: a caller whose call is complete takes no other turn, and would have
  // to wake the coordinator for it.
  if (job_.multi_host && moved && !runs && job_.multi_host->HasUnsent()) {
    if (const Result<bool> sent = job_.multi_host->Progress(); !sent.ok()) abort(sent.error());
  }
  return moved;
}

Result<bool> Driver::ProgressLinks() {
  if (!job_.mux) return false;
  // A look is a system call or two; a call that expects nothing from there does not wait for it.
  bool data = AwaitsData();
  if (!data) {
    const int64_t now = NowNs();
    data = now >= next_links_ns_;
    if (data) next_links_ns_ = now + kLinksEvery;
    if (!data && !AwaitsLinks()) return false;
  }
  HA_ASSIGN(bool moved, job_.mux->Pump());
  if (!job_.multi_host || !data) return moved;
  HA_ASSIGN(const bool exchanged, job_.multi_host->Progress());
  if (exchanged) job_.counters.data_moves.fetch_add(1, std::memory_order_relaxed);
  if (ended_) return moved || exchanged;
  HA_ASSIGN(const bool told, parts_.messages.exchange().ProgressLinks(job_.multi_host->links()));
  return moved || exchanged || told;
}

Result<bool> Driver::ProgressSet(ProcessSet& set) {
  HA_ASSIGN(bool moved, parts_.devices.PublishPending(set));
  HA_TRY(set.controller->Pump());
  const SetEnd end = set.controller->Ended();  // before the log is emptied: see Controller::Ended
  for (auto& running : set.draining) {
    if (running->execution && !running->execution->finished())
      moved |= running->execution->Advance();
  }
  HA_TRY(Drain(set));
  Turn turn;
  HA_ASSIGN(const bool beside, AdvanceBeside(set, turn));
  for (moved |= beside;;) {
    // There may be no end of it: the thread that drives has other sets, a deadline and peers to
    // look at.
    if (turn.IsOver()) return true;
    if (set.current) {
      HA_FAULT(*job_.faults, kAdvance);
      Execution& execution = *set.current->execution;
      for (; !execution.complete() && execution.Advance(); moved = true) {
        if (turn.IsOver()) return true;
      }
      if (execution.failed()) return execution.failure();
      if (execution.complete()) {
        HA_TRY(End(set, std::move(set.current)));
      } else if (execution.overlaps()) {
        set.beside.push_back(std::move(set.current));  // on one host all runs come here in order
      } else {
        return moved;
      }
      moved = true;
    }
    HA_ASSIGN(std::optional<Decision> decision, set.controller->Next());
    if (!decision) break;
    moved = true;
    HA_TRY(Begin(set, std::move(*decision)));
  }
  // The set has ended: calls that were not decided by then never will be.
  if (end && set.queue.pending.load(std::memory_order_relaxed) > 0) {
    Error error = EndOfSet(end);
    if (end == SetEnd::Left(job_.rank())) {
      error.message = set.queue.removed.load() ? "this rank has left the group"
                                               : "the engine has been shut down";
    }
    FailUndecided(set, error);
  }
  if (end && !set.runs() && set.draining.empty()) HA_TRY(set.controller->Release());
  return moved;
}

// Every run by a piece in turn: none waits for a later one.
Result<bool> Driver::AdvanceBeside(ProcessSet& set, Turn& turn) {
  bool moved = false;
  for (bool any = true; any && !set.beside.empty() && !turn.IsOver();) {
    any = false;
    for (size_t k = 0; k < set.beside.size();) {
      HA_FAULT(*job_.faults, kAdvance);
      Running& running = *set.beside[k];
      Execution& execution = *running.execution;
      any |= !execution.complete() && execution.Advance();
      if (execution.failed()) return execution.failure();
      if (execution.settled()) {
        for (const auto& entry : running.entries) entry->decided.store(true);
      }
      if (!execution.complete()) {
        ++k;
        continue;
      }
      std::unique_ptr<Running> ended = std::move(set.beside[k]);
      set.beside.erase(set.beside.begin() + static_cast<ptrdiff_t>(k));
      any = true;
      HA_TRY(End(set, std::move(ended)));
    }
    moved |= any;
  }
  return moved;
}

Status Driver::Begin(ProcessSet& set, Decision decision) {
  HA_FAULT(*job_.faults, kBegin);
  auto running = std::make_unique<Running>();
  {
    std::lock_guard lock(set.queue.mutex);
    if (!set.queue.joins.empty()) set.queue.join_moved_ns = NowNs();
    for (size_t k = 0; k < decision.ids.size(); ++k) {
      std::shared_ptr<CollectiveEntry> found = set.queue.in_flight.Find(decision.ids[k]);
      if (decision.kind == Decision::Kind::kError &&
          (!found || found->generation != decision.generations[k])) {
        continue;  // this rank had not submitted the call that was ended, or has given it up
      }
      if (!found && decision.partial) continue;  // this rank has joined
      if (!found) {
        return MakeError(ErrorKind::kSystem,
                         "a decision names a tensor that this rank has not submitted");
      }
      found->begun = decision.run != 0;
      if (found->begun) job_.counters.plan_granted.fetch_add(1, std::memory_order_relaxed);
      found->decided.store(decision.run == 0, std::memory_order_relaxed);
      const Proposal all = ProposalOfAll(set, decision, k, *found);
      found->agreed = all.plan != 0 && all == found->proposal;
      running->entries.push_back(std::move(found));
    }
  }
  running->decision = std::move(decision);
  const uint64_t begun = job_.counters.decisions.fetch_add(1, std::memory_order_relaxed) + 1;
  job_.own_state().collectives.store(begun, std::memory_order_relaxed);
  const uint64_t bucket = set.buckets_run.load(std::memory_order_relaxed) + 1;
  set.buckets_run.store(bucket, std::memory_order_relaxed);
  for (const auto& entry : running->entries) {
    entry->bucket.store(bucket, std::memory_order_relaxed);
    job_.events.Emit(Phase::kNegotiated, set.id, entry->handle, bucket, 0, entry->display_name, {},
                     entry->flight);
  }
  switch (running->decision.kind) {
    case Decision::Kind::kError:
      return Refuse(set, std::move(running));
    case Decision::Kind::kJoin:
      return EndJoin(set, std::move(running));
    case Decision::Kind::kRun:
    case Decision::Kind::kDrain:
    case Decision::Kind::kNews:  // no controller gives any
      break;
  }
  return Run(set, std::move(running));
}

Status Driver::Run(ProcessSet& set, std::unique_ptr<Running> running) {
  // A rank that has joined takes no part, but between hosts it gives zeros.
  if (running->entries.empty() && !set.multi_host) return Drain(set, std::move(running));
  HA_ASSIGN(running->execution, executions_.Make(set, *running));
  if (!running->execution) return End(set, std::move(running));
  if (running->decision.run != 0) {
    set.beside.push_back(std::move(running));
  } else {
    set.current = std::move(running);
  }
  return {};
}

Status Driver::Refuse(ProcessSet& set, std::unique_ptr<Running> running) {
  Error error = running->decision.error;
  // An invalid argument of the culprit is a mismatch for the other ranks.
  if (error.kind == ErrorKind::kInvalid && error.culprit != job_.rank())
    error.kind = ErrorKind::kMismatch;
  parts_.completion.Complete(set, running->entries, error);
  return Drain(set, std::move(running));
}

// All ranks have joined: they submit again, and number their unnamed calls alike.
Status Driver::EndJoin(ProcessSet& set, std::unique_ptr<Running> running) {
  const auto over = std::make_shared<JoinOver>();
  over->last = static_cast<int32_t>(running->decision.last_joined);
  std::vector<std::shared_ptr<JoinEntry>> joins;
  {
    std::lock_guard lock(set.queue.mutex);
    joins.swap(set.queue.joins);
    set.queue.join_announced = false;
    set.queue.join_over = over;
    set.queue.unnamed = std::max(set.queue.unnamed, running->decision.unnamed);
  }
  for (const auto& entry : joins) {
    entry->over = over;
    HA_TRY(PutLastRank(entry->tensors[0], over->last));
    job_.events.Emit(Phase::kNegotiated, set.id, entry->handle, set.buckets_run, 0,
                     entry->display_name, {}, entry->flight);
    parts_.completion.Complete(set, *entry, {});
  }
  return Drain(set, std::move(running));
}

Status Driver::End(ProcessSet& set, std::unique_ptr<Running> running) {
  HA_FAULT(*job_.faults, kFinish);
  const Status outcome = running->execution ? running->execution->outcome() : Status();
  for (const auto& entry : running->entries) entry->begun = false;
  // A dropped call waits for its decision again, and peers read its row.
  if (running->execution && running->execution->dropped()) {
    job_.counters.plan_dropped.fetch_add(running->entries.size(), std::memory_order_relaxed);
    running->entries.clear();
  }
  for (const auto& entry : running->entries) {
    entry->decided.store(true, std::memory_order_relaxed);
    for (size_t t = 0; outcome.ok() && t < entry->tensors.size(); ++t) {
      const EntryTensor& tensor = entry->tensors[t];
      if (tensor.stage_output && running->decision.shared)
        std::memcpy(tensor.output, tensor.staged, entry->request.tensors[t].bytes());
    }
    if (outcome.ok() && entry->device) HA_TRY(DeviceCalls::CopyBack(*entry));
  }
  parts_.completion.Complete(set, running->entries, outcome);
  return Drain(set, std::move(running));
}

// The calls are complete; peers may still read what this rank shows them.
Status Driver::Drain(ProcessSet& set, std::unique_ptr<Running> running) {
  const auto later = std::ranges::find_if(
      set.draining, [&](const auto& other) { return other->decision.end > running->decision.end; });
  set.draining.insert(later, std::move(running));
  return Drain(set);
}

// Reports finished decisions, in log order, and frees blocks that no peer can read any more.
Status Driver::Drain(ProcessSet& set) {
  while (!set.draining.empty()) {
    Running& oldest = *set.draining.front();
    if (oldest.execution && !oldest.execution->finished()) break;
    if (set.current && set.current->decision.end < oldest.decision.end) break;
    if (!set.beside.empty() && set.beside.front()->decision.end < oldest.decision.end) break;
    const Decision decision = std::move(oldest.decision);
    for (const auto& entry : oldest.entries) {
      if (entry->extra)
        set.kept_blocks.emplace_back(decision.end, std::exchange(entry->extra, nullptr));
    }
    const bool dropped = oldest.execution && oldest.execution->dropped();
    set.draining.pop_front();
    HA_TRY(set.controller->Finish(decision));
    if (dropped) set.context.ring_others(true);  // the leader may tell of its call now
  }
  if (set.kept_blocks.empty()) return {};
  const uint64_t least = set.control->LeastWordsFinished();
  while (!set.kept_blocks.empty() && set.kept_blocks.front().first <= least) {
    job_.arena->Free(set.kept_blocks.front().second);
    set.kept_blocks.pop_front();
  }
  return {};
}

void Driver::FailUndecided(ProcessSet& set, const Error& error) {
  const Undecided undecided = TakeUndecided(job_, set);
  // Of a call that was dropped a rank that lags may still read the row.
  const uint64_t end = set.control->header().log_words.load(std::memory_order_acquire);
  for (const auto& entry : undecided.calls) {
    if (!ended_ && set.multi_host && entry->extra)
      set.kept_blocks.emplace_back(end, std::exchange(entry->extra, nullptr));
  }
  parts_.completion.Complete(set, undecided.calls, error);
  for (const auto& entry : undecided.joins) parts_.completion.Complete(set, *entry, error);
}

// The callers get the error of the rank that gave up, which names the missing ranks. Everything
// else in the set ends too: ranks that have not all seen the same calls cannot go on together.
Status Driver::EndGivenUp() {
  for (const auto& [entry, error] : parts_.deadlines.Take()) {
    const std::shared_ptr<ProcessSet> set = parts_.sets.Find(entry->process_set);
    if (!set || entry->complete.load(std::memory_order_acquire)) continue;
    if (MessageEntry* const message = AsMessage(entry.get())) {
      parts_.messages.exchange().Cancel(*message, error);
    } else if (JoinEntry* const join = AsJoin(entry.get())) {
      {
        std::lock_guard lock(set->queue.mutex);
        std::erase_if(set->queue.joins, [&](const auto& other) { return other.get() == join; });
      }
      parts_.completion.Complete(*set, *join, error);
    } else if (const CollectiveEntry* const call = AsCollective(entry.get());
               IsPublished(*set, *call) && !call->decided) {
      HA_TRY(set->controller->Reject({call->id, call->generation}, error));
      if (call->IsRefusal()) continue;  // nobody waits for it
    }
    HA_TRY(set->controller->End(SetEnd::GaveUp(job_.rank())));
    set->context.ring_others(true);
  }
  return {};
}

void Driver::FailAll(const Error& error) {
  ended_ = true;
  const bool aborted = job_.aborted();
  if (parts_.failure.Record(error) && aborted)
    parts_.telemetry.RecordFlight(error.message, !job_.multi_host);
  parts_.messages.exchange().FailAll(error);
  // Not if this rank shuts down in good order: the others may still read from it.
  if (job_.multi_host && aborted) job_.multi_host->Abort(error);
  const auto driven = parts_.sets.Driven();
  quarantine::StopTouching(
      [&] {
        for (const auto& set : driven) {
          set->current.reset();
          set->beside.clear();
          set->draining.clear();
        }
      },
      [&] {
        for (const auto& set : driven) std::lock_guard announced(set->queue.mutex);
      },
      [this] { job_.own_state().abort_seen.store(1, std::memory_order_release); });
  for (const auto& set : driven) {
    FailUndecided(*set, error);
    std::vector<std::shared_ptr<CollectiveEntry>> decided;
    {
      std::lock_guard lock(set->queue.mutex);
      for (const uint32_t id : set->queue.in_flight.ids())
        decided.push_back(set->queue.in_flight.Find(id));
    }
    parts_.completion.Complete(*set, decided, error);
  }
}

bool Driver::WorkLeft() {
  if (job_.HasUnsent() || parts_.messages.exchange().pending()) return true;
  return std::ranges::any_of(parts_.sets.Driven(), [](const auto& set) {
    return set->runs() || !set->draining.empty() || set->queue.removed.load();
  });
}

bool Driver::AnythingPending() const {
  if (parts_.messages.exchange().pending()) return true;
  return std::ranges::any_of(parts_.sets.Own(), [](const auto& set) {
    return set->queue.pending.load(std::memory_order_relaxed) > 0 || set->controller->HoldsNews();
  });
}

}  // namespace horoacc
