#include "runtime/engine/submitter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "execute/kernels/reduce.h"
#include "runtime/engine/assemble_exchange.h"

namespace horoacc {
namespace {

void SetLimit(Entry& entry, double seconds) {
  entry.submitted_ns = NowNs();
  if (seconds <= 0) return;
  entry.limit_seconds = seconds;
  entry.deadline_ns = entry.submitted_ns + FromSeconds(seconds);
}

// Why rank `rank` may not make this call of a collective; "": it may.
std::string ReasonInvalid(const ProcessSet& set, const Submission& submission, int rank) {
  const Request& request = submission.request;
  const auto ranks = static_cast<int64_t>(set.ranks.size());
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorMeta& tensor = request.tensors[t];
    const bool gives = !IsBarrier(request.collective) &&
                       (request.collective != Collective::kScatter || request.root == rank);
    if (submission.buffers[t].input == nullptr && tensor.bytes() > 0 && gives) {
      return "no memory was given for its " + std::to_string(tensor.bytes()) + " bytes";
    }
    if (tensor.shape.given() > static_cast<uint32_t>(kMaxDims)) {
      return std::to_string(tensor.shape.given()) + " dimensions; at most " +
             std::to_string(kMaxDims);
    }
    if (Reduces(request.collective)) {
      if (const Status status = CheckReducible(tensor.type, request.op); !status.ok()) {
        return status.error().message;
      }
      if (request.op == ReduceOp::kAdasum && request.collective != Collective::kAllreduce)
        return std::string(NameOf(request.collective)) + " does not take adasum";
    }
    const bool needs_rows = request.collective == Collective::kAllgather ||
                            request.collective == Collective::kAlltoall ||
                            request.collective == Collective::kReducescatter;
    if (needs_rows && tensor.shape.empty()) {
      return std::string(NameOf(request.collective)) + " needs a tensor of at least one dimension";
    }
  }
  if (HasRoot(request.collective) &&
      std::ranges::find(set.ranks, request.root) == set.ranks.end()) {
    return "root rank " + std::to_string(request.root) + " is not in the process set";
  }
  if (request.collective == Collective::kAlltoall && request.tensors.size() != 1) {
    return "alltoall takes one tensor, not " + std::to_string(request.tensors.size());
  }
  if (!IsBarrier(request.collective) && request.tensors.empty()) {
    return std::string(NameOf(request.collective)) + " needs a tensor";
  }
  if (request.collective == Collective::kAlltoall) {
    const int64_t rows = request.tensors[0].shape[0];
    if (request.splits.empty()) {
      if (rows % ranks != 0) {
        return "alltoall without splits: first dimension " + std::to_string(rows) +
               " is not divisible by the " + std::to_string(ranks) + " ranks of the process set";
      }
    } else if (static_cast<int64_t>(request.splits.size()) != ranks) {
      return "alltoall: " + std::to_string(request.splits.size()) + " splits for " +
             std::to_string(ranks) + " ranks";
    } else if (std::ranges::any_of(request.splits, [](int64_t part) { return part < 0; })) {
      return "alltoall: negative split";
    } else if (const int64_t sum =
                   std::accumulate(request.splits.begin(), request.splits.end(), int64_t{0});
               sum != rows) {
      return "alltoall: splits add up to " + std::to_string(sum) + ", the first dimension is " +
             std::to_string(rows);
    }
    if (!request.receives.empty() && static_cast<int64_t>(request.receives.size()) != ranks) {
      return "alltoall: room for parts of " + std::to_string(request.receives.size()) +
             " ranks, the process set has " + std::to_string(ranks);
    }
  }
  return "";
}

std::shared_ptr<CollectiveEntry> MakeEntry(uint32_t process_set, Submission& submission) {
  auto entry = std::make_shared<CollectiveEntry>();
  entry->process_set = process_set;
  entry->named = !submission.name.empty();
  if (submission.grouped) entry->group_name = GroupName(submission.name);
  entry->display_name = std::move(submission.name);
  entry->request = std::move(submission.request);
  entry->request.on_gpu = submission.device.has_value();
  entry->done = std::move(submission.done);
  entry->proposal.plan = submission.proposal;
  entry->recurs = submission.recurs;
  entry->doubts = std::move(submission.doubts);
  SetLimit(*entry, submission.limit_seconds);
  entry->tensors.reserve(submission.buffers.size());
  for (const Submission::Buffers& buffers : submission.buffers) {
    EntryTensor& tensor = entry->tensors.emplace_back();
    tensor.result_shape = entry->request.tensors[entry->tensors.size() - 1].shape;
    tensor.input = static_cast<const std::byte*>(buffers.input);
    tensor.output = static_cast<std::byte*>(buffers.output);
  }
  return entry;
}

}  // namespace

Result<std::shared_ptr<ProcessSet>> Submitter::FindOwnSet(uint32_t id) const {
  if (job_.stopping.load(std::memory_order_acquire))
    return MakeError(ErrorKind::kAborted, "the engine has been shut down");
  std::shared_ptr<ProcessSet> set = sets_.Find(id);
  if (!set) return MakeError(ErrorKind::kInvalid, "unknown process set " + std::to_string(id));
  if (!set->Has(job_.rank())) {
    return MakeError(ErrorKind::kInvalid, "rank " + std::to_string(job_.rank()) +
                                              " is not in process set " + std::to_string(id));
  }
  return set;
}

Result<uint64_t> Submitter::Submit(Submission&& submission) {
  if (const std::optional<Error> failed = failure_.recorded()) [[unlikely]] {
    return failure_.AnnotateRefusal(*failed, sets_.Find(submission.process_set).get(),
                                    submission.name);
  }
  HA_FAULT(*job_.faults, kSubmit);
  HA_ASSIGN(const std::shared_ptr<ProcessSet> set, FindOwnSet(submission.process_set));
  if (submission.request.collective == Collective::kJoin)
    return SubmitJoin(*set, std::move(submission));
  if (submission.device) HA_TRY(devices_.CheckMode(*set));
  std::string& local_error = submission.request.local_error;
  if (local_error.empty()) local_error = ReasonInvalid(*set, submission, job_.rank());
  if (job_.events.active()) {  // a timeline shows each tensor by itself
    submission.proposal = 0;
    if (submission.recurs == Recurs::kInPlan && local_error.empty())
      local_error = "a timeline is being written";
  }
  if (submission.recurs == Recurs::kByName && !set->multi_host) submission.recurs = Recurs::kNo;
  const std::shared_ptr<CollectiveEntry> entry = MakeEntry(set->id, submission);
  if (!submission.device) publisher_.CheckNumerics(*entry);
  if (submission.device && entry->request.local_error.empty()) {
    if (Status begun = devices_.Begin(*set, *entry, submission); !begun.ok())
      entry->request.local_error = begun.error().message;
  }
  const std::string invalid = entry->request.local_error;
  HA_TRY(Enqueue(*set, entry));
  if (!invalid.empty()) {
    return MakeError(ErrorKind::kInvalid, "tensor '" + entry->display_name + "': " + invalid);
  }
  return entry->handle;
}

// Under the queue's lock. After an abort the driver records the failure, then passes through this
// lock, then says that this rank touches no peer's memory any more; a later call must see it.
Status Submitter::CheckOpen(const ProcessSet& set, const std::string& tensor) const {
  if (set.queue.removed.load(std::memory_order_relaxed)) {
    return MakeError(ErrorKind::kInvalid, "process set " + std::to_string(set.id) + " was removed");
  }
  if (const std::optional<Error> failed = failure_.recorded())
    return failure_.AnnotateRefusal(*failed, &set, tensor);
  return {};
}

// Under the queue's lock.
Status Submitter::NameEntry(ProcessSet& set, CollectiveEntry& entry) {
  SetQueue& queue = set.queue;
  if (!entry.named) {
    entry.number = queue.unnamed++;
    entry.id = kNamedIds + static_cast<uint32_t>(entry.number % kUnnamedIds);
    entry.display_name = NameOfUnnamed(entry.request.collective, entry.number);
    return {};
  }
  NameRecord& record = queue.names.Submitted(entry.display_name);
  // A bucket is refused for the next round (LockedPlan) while this round's call may be in flight.
  if (record.held_by != 0 && !entry.IsRefusal()) {
    return MakeError(
        ErrorKind::kInvalid,
        "tensor '" + entry.display_name + "' was submitted again before its handle was released");
  }
  // The id may have gone to another name, with a call in flight: behind that one this call might
  // wait for ever.
  const auto holder = record.known ? queue.in_flight.Find(record.id) : nullptr;
  if (!record.known || (holder && holder->name() != entry.name())) {
    HA_ASSIGN(const SetSegment::NamedId found, set.control->Lookup(entry.name()));
    record.id = found.id;
    record.id_version = found.id_version;
    record.known = true;
  }
  entry.id = record.id;
  entry.id_version = record.id_version;
  entry.reservation = &record;
  return {};
}

void Submitter::EmitQueued(ProcessSet& set, Entry& entry, const Request& request) {
  job_.counters.submissions.fetch_add(1, std::memory_order_relaxed);
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : request.tensors) bytes += tensor.bytes();
  entry.flight = job_.events.Emit(
      Phase::kQueued, set.id, entry.handle, 0, bytes, entry.display_name,
      NameOf(request.collective), 0,
      request.tensors.empty() ? std::nullopt : std::optional(request.tensors.front().type));
}

void Submitter::TakeBack(SetQueue& queue, Entry& entry) {
  queue.Leave();
  handles_.Remove(entry.handle);
}

Status Submitter::Enqueue(ProcessSet& set, const std::shared_ptr<CollectiveEntry>& entry) {
  const bool has_callback = entry->done != nullptr;
  bool wakes = false;
  Status published;
  {
    std::lock_guard lock(set.queue.mutex);
    SetQueue& queue = set.queue;
    HA_TRY(CheckOpen(set, entry->display_name));
    if (!queue.joins.empty()) {
      return MakeError(ErrorKind::kInvalid,
                       "rank " + std::to_string(job_.rank()) +
                           " has joined: it submits nothing until all ranks have");
    }
    HA_TRY(NameEntry(set, *entry));
    handles_.Add(entry);
    queue.join_over.reset();
    wakes = queue.Enter() && (has_callback || job_.must_poll);
    EmitQueued(set, *entry, entry->request);
    if (entry->request.local_error.empty()) {
      if (entry->reservation) entry->reservation->held_by = entry->handle;
    } else {
      // The other ranks must hear of an invalid call too, or they would wait for ever. It is
      // published as such, and the caller gets no handle.
      entry->released = true;
      entry->done = nullptr;
      handles_.Remove(entry->handle);
      job_.events.Emit(Phase::kReleased, set.id, entry->handle, 0, 0, entry->display_name);
    }
    if (entry->reservation) ++entry->reservation->calls;
    entry->linked = set.multi_host != nullptr;
    entry->sync_round = queue.sync_round;
    if (devices_.MustWait(queue, *entry)) {
      queue.pending_copies.push_back(entry);
      job_.gpu_polls.fetch_add(1, std::memory_order_relaxed);
      wakes = true;
    } else if (published = publisher_.PublishInTurn(set, entry); !published.ok()) {
      TakeBack(queue, *entry);
      if (entry->reservation) {
        entry->reservation->held_by = 0;
        --entry->reservation->calls;
      }
    } else if (entry->reservation) {
      // The next one's generation is as odd or even as this one's, unless it was left out before.
      if (const NameRecord* const next = queue.names.Prefetched(); next && next->known)
        set.control->Prefetch({next->id, entry->generation});
    }
  }
  if (!published.ok()) {
    failure_.Abort(published.error());  // the other ranks count on this call
    return published;
  }
  // MPI wakes no thread: from now on some thread has to ask it. And no thread may ever wait for a
  // call with a callback: from now on some thread has to look whether its bucket is stuck.
  if (wakes) job_.WakeCoordinator();
  return {};
}

Result<uint64_t> Submitter::SubmitJoin(ProcessSet& set, Submission&& submission) {
  if (!submission.request.local_error.empty())
    return MakeError(ErrorKind::kInvalid, "join: " + submission.request.local_error);
  const auto entry = std::make_shared<JoinEntry>();
  entry->process_set = set.id;
  entry->display_name = NameOf(Collective::kJoin);
  entry->done = std::move(submission.done);
  SetLimit(*entry, submission.limit_seconds);
  (void)entry->tensors.emplace_back();
  const bool has_callback = entry->done != nullptr;
  bool wakes = false;
  Status announced;
  {
    std::lock_guard lock(set.queue.mutex);
    SetQueue& queue = set.queue;
    HA_TRY(CheckOpen(set, entry->display_name));
    handles_.Add(entry);
    if (queue.join_over && !queue.join_over->taken) return TakeOverJoin(queue, *entry);
    queue.join_over.reset();
    wakes = queue.Enter() && (has_callback || job_.must_poll);
    Request request;
    request.collective = Collective::kJoin;
    EmitQueued(set, *entry, request);
    entry->linked = set.multi_host != nullptr;
    queue.joins.push_back(entry);
    announced = Publisher::AnnounceJoin(set);
    if (!announced.ok()) {
      std::erase(queue.joins, entry);
      TakeBack(queue, *entry);
    }
  }
  if (!announced.ok()) {
    failure_.Abort(announced.error());
    return announced.error();
  }
  if (wakes) job_.WakeCoordinator();
  return entry->handle;
}

// A caller that was interrupted in a join is back: the others do not join a second time. Under the
// queue's lock.
uint64_t Submitter::TakeOverJoin(SetQueue& queue, JoinEntry& entry) {
  entry.over = std::move(queue.join_over);
  queue.join_over.reset();
  entry.outcome = PutLastRank(entry.tensors[0], entry.over->last);
  entry.complete.store(true, std::memory_order_release);
  if (auto done = entry.TakeCallback()) job_.callbacks.Post(std::move(done));
  return entry.handle;
}

}  // namespace horoacc
