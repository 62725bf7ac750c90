// The loop: takes decisions in log order, runs them, completes handles. One thread at a time.
#include <algorithm>
#include <cstring>

#include "execute/shared_memory/adasum_slices.h"
#include "execute/shared_memory/direct_slices.h"
#include "execute/shared_memory/exchange.h"
#include "execute/shared_memory/two_phase.h"
#include "negotiate/control_segment/assemble_reduce.h"
#include "runtime/engine/assemble_exchange.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr int kStepsPerTurn = 256;  // decisions, and bounded pieces of executions, of one set
constexpr int kStepsPerClock = 8;   // of them between looks at the clock
constexpr int64_t kLongestTurn = 2 * kMillisecond;

// Ends a turn of the loop by count and by the clock, which a turn of few steps does not read.
class Turn {
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

std::vector<ReducePiece> PrivatePieces(const ProcessSet& set, const SetContext& context,
                                       const Running& running) {
  ReduceList list;
  for (const auto& entry : running.entries) {
    const size_t first = list.pieces.size();
    AppendPieces(*set.control, context, {entry->id, entry->generation}, false, list);
    for (size_t t = 0; t < entry->tensors.size(); ++t) {
      list.pieces[first + t].input = entry->tensors[t].input;
      list.pieces[first + t].output = entry->tensors[t].output;
    }
  }
  return std::move(list.pieces);
}

}  // namespace

bool Engine::Progress() {
  if (gone_) return false;
  if (const Error aborted = control_.aborted(); aborted.kind != ErrorKind::kOk) {
    FailAll(aborted);
    if (mux_ && mux_->HasUnsent()) (void)mux_->Pump();  // others wait for the news
    return false;
  }
  bool moved = false;
  if (any_given_up_.load(std::memory_order_acquire)) {
    if (Status ended = EndGivenUp(); !ended.ok()) {
      AbortUnlessTold(ended.error());
      return true;
    }
  }
  if (mux_) {
    const Result<bool> pumped = mux_->Pump();
    if (!pumped.ok()) {
      AbortUnlessTold(pumped.error());
      return true;
    }
    moved = pumped.value();
  }
  if (multi_host_) {
    const Result<bool> exchanged = multi_host_->Progress();
    if (!exchanged.ok()) {
      AbortUnlessTold(exchanged.error());
      return true;
    }
    if (exchanged.value()) data_moves_.fetch_add(1, std::memory_order_relaxed);
    moved |= exchanged.value();
  }
  moved |= messages_->Progress();
  bool runs = false;
  for (const auto& set : DrivenSets()) {
    const Result<bool> advanced = ProgressSet(*set);
    if (!advanced.ok()) {
      AbortUnlessTold(advanced.error());
      return true;
    }
    if (advanced.value()) set->moves.fetch_add(1, std::memory_order_relaxed);
    moved |= advanced.value();
    runs |= set->current != nullptr;
  }
  // What is left over goes now: a caller whose call is complete takes no other turn, and would have
  // to wake the coordinator for it.
  if (multi_host_ && moved && !runs && multi_host_->HasUnsent()) {
    if (const Result<bool> exchanged = multi_host_->Progress(); !exchanged.ok())
      AbortUnlessTold(exchanged.error());
  }
  return moved;
}

Result<bool> Engine::ProgressSet(ProcessSet& set) {
  HA_ASSIGN(bool moved, PublishArrived(set));
  HA_TRY(set.controller->Pump());
  const SetEnd end = set.controller->Ended();  // before the log is emptied: see Controller::Ended
  for (auto& running : set.draining) {
    if (running->execution && !running->execution->finished())
      moved |= running->execution->Advance();
  }
  HA_TRY(Drain(set));
  for (Turn turn;;) {
    // There may be no end of it: whoever drives has other sets, a deadline and peers to look at.
    if (turn.IsOver()) return true;
    if (set.current) {
      HA_FAULT(*faults_, kAdvance);
      Execution& execution = *set.current->execution;
      for (; !execution.complete() && execution.Advance(); moved = true) {
        if (turn.IsOver()) return true;
      }
      if (execution.failed()) return execution.failure();
      if (!execution.complete()) return moved;
      HA_TRY(End(set, std::move(set.current)));
      moved = true;
    }
    HA_ASSIGN(std::optional<Decision> decision, set.controller->Next());
    if (!decision) break;
    moved = true;
    HA_TRY(Begin(set, std::move(*decision)));
  }
  // The set has ended: what was not decided by then never will be.
  if (end && set.queue.pending.load(std::memory_order_relaxed) > 0) {
    Error error = EndOfSet(end);
    if (end == SetEnd::Left(placement_.rank)) {
      error.message = set.queue.removed.load() ? "this rank has left the group"
                                               : "the engine has been shut down";
    }
    FailUndecided(set, error);
  }
  if (end && !set.current && set.draining.empty()) HA_TRY(set.controller->Release());
  return moved;
}

Status Engine::Begin(ProcessSet& set, Decision decision) {
  HA_FAULT(*faults_, kBegin);
  auto running = std::make_unique<Running>();
  running->decision = std::move(decision);
  {
    std::lock_guard lock(set.queue.mutex);
    if (!set.queue.joins.empty()) set.queue.join_moved_ns = NowNs();
    const Decision& decision = running->decision;
    for (size_t k = 0; k < decision.ids.size(); ++k) {
      std::shared_ptr<Entry> found = set.queue.in_flight.Find(decision.ids[k]);
      if (decision.kind == Decision::Kind::kError &&
          (!found || found->generation != decision.generations[k])) {
        continue;  // this rank had not submitted the call that was ended, or has given it up
      }
      if (!found && decision.partial) continue;  // this rank has joined
      if (!found) {
        return MakeError(ErrorKind::kSystem,
                         "a decision names a tensor that this rank has not submitted");
      }
      found->decided.store(true, std::memory_order_relaxed);
      running->entries.push_back(std::move(found));
    }
  }
  const uint64_t begun = counters_.decisions.fetch_add(1, std::memory_order_relaxed) + 1;
  control_.state(share_.local_rank).collectives.store(begun, std::memory_order_relaxed);
  const uint64_t bucket = set.buckets_run.load(std::memory_order_relaxed) + 1;
  set.buckets_run.store(bucket, std::memory_order_relaxed);
  for (const auto& entry : running->entries) {
    entry->bucket.store(bucket, std::memory_order_relaxed);
    events_.Emit(Phase::kNegotiated, set.id, entry->handle, bucket, 0, entry->display_name, {},
                 entry->flight);
  }
  if (running->decision.kind == Decision::Kind::kError) {
    Error error = running->decision.error;
    // What is a bad argument where it was made is a disagreement for everybody else.
    if (error.kind == ErrorKind::kInvalid && error.culprit != placement_.rank)
      error.kind = ErrorKind::kMismatch;
    for (const auto& entry : running->entries) Complete(set, *entry, error);
    set.draining.push_back(std::move(running));
    return Drain(set);
  }
  if (running->decision.kind == Decision::Kind::kJoin) return EndJoin(set, std::move(running));
  if (set.multi_host) return BeginMultiHost(set, std::move(running));
  if (running->entries.empty()) {
    set.draining.push_back(std::move(running));
    return Drain(set);
  }
  if (running->decision.partial) {
    const Entry& only = *running->entries[0];
    HA_ASSIGN(running->context,
              PartialContext(*set.control, set.context, {only.id, only.generation}));
  }
  for (const auto& entry : running->entries) HA_TRY(PrepareOutputs(set, *entry));
  Status status;
  running->execution = MakeExecution(set, *running, status);
  HA_TRY(std::move(status));
  set.current = std::move(running);
  if (!set.current->execution) return End(set, std::move(set.current));
  return {};
}

std::unique_ptr<Execution> Engine::MakeExecution(ProcessSet& set, Running& running,
                                                 Status& status) {
  if (MayRunOnGpus(set, running)) return MakeDeviceRun(set, running);
  return MakeHostExecution(set, running, status);
}

std::unique_ptr<Execution> Engine::MakeHostExecution(ProcessSet& set, Running& running,
                                                     Status& status) {
  const Decision& decision = running.decision;
  const SetContext& context = running.context ? *running.context : set.context;
  const Entry& first = *running.entries[0];
  const bool allreduce = first.request.collective == Collective::kAllreduce;
  uint64_t bytes = 0;
  for (const auto& entry : running.entries) {
    for (const TensorMeta& tensor : entry->request.tensors) bytes += tensor.bytes();
  }
  if (allreduce) counters_.buckets.fetch_add(1, std::memory_order_relaxed);
  for (const auto& entry : running.entries) {
    events_.Emit(Phase::kExecute, set.id, entry->handle, set.buckets_run, bytes,
                 entry->display_name, entry->device ? "cpu_reduce" : NameOf(decision.path));
  }
  if (allreduce && decision.shared) {
    for (const auto& entry : running.entries) {
      for (size_t t = 0; t < entry->tensors.size(); ++t) {
        if (!entry->tensors[t].staged && !entry->device) {
          counters_.arena_bytes.fetch_add(entry->request.tensors[t].bytes(),
                                          std::memory_order_relaxed);
        }
      }
    }
  }
  ExecSlot& slot = set.control->slot(decision.slot);
  switch (decision.path) {
    case Path::kNone:
      return nullptr;
    case Path::kLastArriver:
      counters_.last_arriver.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    case Path::kDirectSlices:
    case Path::kAdasumSlices: {
      ReduceList list;
      list.pieces.reserve(running.entries.size());
      for (const auto& entry : running.entries) {
        AppendPieces(*set.control, context, {entry->id, entry->generation}, true, list);
      }
      if (decision.path == Path::kAdasumSlices)
        return std::make_unique<AdasumSlices>(context, slot, std::move(list));
      if (RunsPipelined(running)) {
        std::vector<MultiHostRun::Call> calls;
        for (const auto& entry : running.entries) calls.push_back({&entry->request, entry.get()});
        return std::make_unique<DirectSlices>(context, slot, std::move(list),
                                              settings_.gpu_chunk_bytes, PipelineOf(calls));
      }
      return std::make_unique<DirectSlices>(context, slot, std::move(list));
    }
    case Path::kFlatWindows: {
      counters_.window_bytes.fetch_add(bytes, std::memory_order_relaxed);
      std::vector<ExchangePiece> pieces;
      for (const ReducePiece& piece : PrivatePieces(set, context, running)) {
        pieces.push_back(FlatAllreduce(piece, context));
      }
      return std::make_unique<Exchange>(context, slot, std::move(pieces));
    }
    case Path::kTwoPhaseWindows:
      counters_.window_bytes.fetch_add(bytes, std::memory_order_relaxed);
      return std::make_unique<TwoPhaseWindows>(context, slot, PrivatePieces(set, context, running));
    case Path::kExchange: {
      std::vector<ExchangePiece> pieces;
      for (const auto& entry : running.entries) {
        for (ExchangePiece& piece : ExchangePieces(set, *entry)) pieces.push_back(std::move(piece));
      }
      return std::make_unique<Exchange>(set.context, slot, std::move(pieces));
    }
    case Path::kEager:
    case Path::kSchedule:
      break;  // between hosts
  }
  status = MakeError(ErrorKind::kSystem, "no path for this collective");
  return nullptr;
}

Status Engine::End(ProcessSet& set, std::unique_ptr<Running> running) {
  HA_FAULT(*faults_, kFinish);
  const Status outcome = running->execution ? running->execution->outcome() : Status();
  for (const auto& entry : running->entries) {
    if (!outcome.ok()) {
      Complete(set, *entry, outcome);
      continue;
    }
    for (EntryTensor& tensor : entry->tensors) {
      if (tensor.stage_output && running->decision.shared) {
        std::memcpy(tensor.output, tensor.staged,
                    entry->request.tensors[&tensor - entry->tensors.data()].bytes());
      }
    }
    if (entry->device) HA_TRY(LandDevice(*entry));
    Complete(set, *entry, {});
  }
  set.draining.push_back(std::move(running));
  return Drain(set);
}

// Reports finished decisions, in log order, and frees what no peer can read any more.
Status Engine::Drain(ProcessSet& set) {
  while (!set.draining.empty()) {
    const Running& oldest = *set.draining.front();
    if (oldest.execution && !oldest.execution->finished()) break;
    const Decision decision = oldest.decision;
    for (const auto& entry : oldest.entries) {
      if (entry->extra)
        set.kept_blocks.emplace_back(decision.end, std::exchange(entry->extra, nullptr));
    }
    set.draining.pop_front();
    HA_TRY(set.controller->Finish(decision));
  }
  if (!set.kept_blocks.empty()) {
    const uint64_t least = set.control->LeastWordsFinished();
    while (!set.kept_blocks.empty() && set.kept_blocks.front().first <= least) {
      arena_->Free(set.kept_blocks.front().second);
      set.kept_blocks.pop_front();
    }
  }
  return {};
}

void Engine::Complete(ProcessSet& set, Entry& entry, Status outcome) {
  const bool failed = !outcome.ok();
  if (failed) outcome = AnnotateError(std::move(outcome.error()), &set, &entry);
  for (EntryTensor& tensor : entry.tensors) {
    if (tensor.staged) FreeShared(std::exchange(tensor.staged, nullptr));
  }
  if (entry.device) entry.device->Release();
  // Of a call that was decided Drain frees it, once no peer can read it any more.
  if (entry.extra && !entry.decided) FreeShared(std::exchange(entry.extra, nullptr));
  events_.Emit(failed ? Phase::kError : Phase::kExecuted, set.id, entry.handle, set.buckets_run, 0,
               entry.display_name,
               failed ? std::string_view(outcome.error().message) : std::string_view(),
               entry.flight);
  {
    std::lock_guard lock(set.queue.mutex);
    set.queue.in_flight.Erase(entry);
    if (entry.reservation) --entry.reservation->calls;
    entry.outcome = std::move(outcome);
    entry.complete.store(true, std::memory_order_seq_cst);
    set.queue.pending.fetch_sub(1, std::memory_order_relaxed);
    if (!set.queue.backlog.empty()) {
      Status status = PublishBacklog(set);
      if (status.ok()) status = AnnounceJoin(set);
      if (!status.ok()) Abort(status.error());
    }
  }
  WakeWaiters(entry);
}

// A waiter either sees that the entry is complete when it leaves, or was counted out before.
void Engine::WakeWaiters(Entry& entry) {
  completed_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) > 0) FutexWakeAll(completed_);
  if (entry.waiters.load(std::memory_order_seq_cst) > 0) return;
  if (auto done = entry.TakeCallback()) completion_.Post(std::move(done));
}

}  // namespace horoacc
