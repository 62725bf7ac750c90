// From a framework's call to an entry: what is wrong with it, and what it is called.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "execute/kernels/finite.h"
#include "execute/kernels/reduce.h"
#include "negotiate/control_segment/assemble_reduce.h"
#include "runtime/engine/engine.h"

namespace horoacc {

std::string Engine::Validate(const ProcessSet& set, const Submission& submission) const {
  const Request& request = submission.request;
  if (request.collective == Collective::kJoin) return "";
  const auto ranks = static_cast<int64_t>(set.ranks.size());
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorMeta& tensor = request.tensors[t];
    const bool gives =
        !IsBarrier(request.collective) &&
        (request.collective != Collective::kScatter || request.root == placement_.rank);
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

std::string Engine::FindNotFinite(const Request& request, std::span<const void* const> inputs) {
  if (!Reduces(request.collective)) return "";
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorMeta& tensor = request.tensors[t];
    const uint64_t count = tensor.bytes() / SizeOf(tensor.type);
    const auto found = FirstNotFinite(inputs[t], tensor.type, count);
    if (!found) continue;
    return "element " + std::to_string(*found) + " of " + std::to_string(count) +
           (request.tensors.size() > 1 ? " of tensor " + std::to_string(t) + " of the group" : "") +
           " is infinite or not a number (setting 'check_numerics')";
  }
  return "";
}

Result<uint64_t> Engine::Submit(Submission submission) {
  const auto failure = [this] {
    std::lock_guard lock(failure_mutex_);
    return failure_;
  }();
  if (failure) {
    return AnnotateRefusal(*failure, FindSet(submission.process_set).get(), submission.name);
  }
  HA_FAULT(*faults_, kSubmit);
  if (stopping_.load(std::memory_order_acquire)) {
    return MakeError(ErrorKind::kAborted, "the engine has been shut down");
  }
  const std::shared_ptr<ProcessSet> set = FindSet(submission.process_set);
  if (!set) {
    return MakeError(ErrorKind::kInvalid,
                     "unknown process set " + std::to_string(submission.process_set));
  }
  if (std::ranges::find(set->ranks, placement_.rank) == set->ranks.end()) {
    return MakeError(ErrorKind::kInvalid, "rank " + std::to_string(placement_.rank) +
                                              " is not in process set " + std::to_string(set->id));
  }
  if (submission.device) HA_TRY(CheckGpuMode(*set));
  if (submission.request.local_error.empty())
    submission.request.local_error = Validate(*set, submission);
  if (settings_.check_numerics && submission.request.local_error.empty() && !submission.device) {
    std::vector<const void*> inputs;
    for (const auto& buffer : submission.buffers) inputs.push_back(buffer.input);
    submission.request.local_error = FindNotFinite(submission.request, inputs);
  }

  auto entry = std::make_shared<Entry>();
  entry->process_set = set->id;
  entry->name = submission.grouped ? GroupName(submission.name) : submission.name;
  entry->request = std::move(submission.request);
  entry->request.on_gpu = submission.device.has_value();
  entry->done = std::move(submission.done);
  entry->submitted_ns = NowNs();
  if (submission.limit_seconds > 0) {
    entry->limit_seconds = submission.limit_seconds;
    entry->deadline_ns = entry->submitted_ns + FromSeconds(submission.limit_seconds);
  }
  entry->tensors.resize(submission.buffers.size());
  for (size_t t = 0; t < entry->tensors.size(); ++t) {
    entry->tensors[t].input = static_cast<const std::byte*>(submission.buffers[t].input);
    entry->tensors[t].output = static_cast<std::byte*>(submission.buffers[t].output);
  }
  if (submission.device && entry->request.local_error.empty()) {
    if (Status begun = BeginDevice(*entry, submission); !begun.ok())
      entry->request.local_error = begun.error().message;
  }
  const std::string complaint = entry->request.local_error;

  std::lock_guard lock(set->queue.mutex);
  SetQueue& queue = set->queue;
  if (queue.removed.load(std::memory_order_relaxed)) {
    return MakeError(ErrorKind::kInvalid,
                     "process set " + std::to_string(set->id) + " was removed");
  }
  const bool join = entry->request.collective == Collective::kJoin;
  if (!join && !queue.joins.empty()) {
    return MakeError(ErrorKind::kInvalid, "rank " + std::to_string(placement_.rank) +
                                              " has joined: it submits nothing until all ranks "
                                              "have");
  }
  if (join) {
    entry->id = kIds;  // it has none
    entry->display_name = NameOf(Collective::kJoin);
    entry->request.tensors = {{DType::kInt32, {}}};
    entry->tensors.resize(1);
    entry->handle = handles_.Add(entry);
  } else if (!entry->name.empty()) {
    NameRecord& record = queue.names.Find(submission.name);
    if (record.held_by != 0) {
      return MakeError(
          ErrorKind::kInvalid,
          "tensor '" + submission.name + "' was submitted again before its handle was released");
    }
    // Behind a call of the name that has this id by now it might wait for ever.
    const auto holder = record.known ? queue.in_flight.Find(record.id) : nullptr;
    if (!record.known || (holder && holder->name != entry->name)) {
      HA_ASSIGN(const SetSegment::NamedId found, set->control->Lookup(entry->name));
      record.id = found.id;
      record.incarnation = found.id_version;
      record.known = true;
    }
    entry->id = record.id;
    entry->incarnation = record.incarnation;
    entry->display_name = std::move(submission.name);
    entry->handle = handles_.Add(entry);
    record.held_by = entry->handle;
    entry->reservation = &record;
  } else {
    const uint64_t number = entry->number = queue.unnamed++;
    entry->id = kNamedIds + static_cast<uint32_t>(number % kUnnamedIds);
    entry->display_name =
        std::string(NameOf(entry->request.collective)) + ".noname." + std::to_string(number);
    entry->handle = handles_.Add(entry);
  }
  {
    // After an abort the driver passes through this lock before it says that this rank touches
    // no peer's memory any more; whoever comes later must see the failure.
    std::lock_guard failed(failure_mutex_);
    if (failure_) {
      handles_.Remove(entry->handle);
      if (entry->reservation) entry->reservation->held_by = 0;
      return AnnotateRefusal(*failure_, set.get(), entry->display_name);
    }
  }
  if (join && queue.join_over && !queue.join_over->taken) return TakeOverJoin(queue, *entry);
  queue.join_over.reset();
  const bool was_idle = queue.pending.fetch_add(1, std::memory_order_relaxed) == 0;
  counters_.submissions.fetch_add(1, std::memory_order_relaxed);
  entry->flight = events_.Emit(Phase::kQueued, set->id, entry->handle, 0, 0, entry->display_name,
                               NameOf(entry->request.collective));
  if (!complaint.empty()) {
    // The other ranks must hear of it too, or they would wait for ever: the bad call is published
    // as such, and nobody here holds its handle.
    entry->released = true;
    entry->done = nullptr;
    if (entry->reservation) entry->reservation->held_by = 0;
    handles_.Remove(entry->handle);
    events_.Emit(Phase::kReleased, set->id, entry->handle, 0, 0, entry->display_name);
  }
  if (entry->reservation) ++entry->reservation->calls;
  entry->pause = queue.pause;
  const bool has_callback = entry->done != nullptr;
  const bool arrives = !join && MustArrive(queue, *entry);
  if (join) queue.joins.push_back(entry);
  if (arrives) {
    queue.arriving.push_back(entry);
    arriving_.fetch_add(1, std::memory_order_relaxed);
  } else {
    if (Status published = join ? AnnounceJoin(*set) : PublishInTurn(*set, entry);
        !published.ok()) {
      std::erase(queue.joins, entry);
      queue.pending.fetch_sub(1, std::memory_order_relaxed);
      handles_.Remove(entry->handle);
      if (entry->reservation) {
        entry->reservation->held_by = 0;
        --entry->reservation->calls;
      }
      Abort(published.error());  // the other ranks count on this call
      return std::move(published.error());
    }
  }
  // MPI wakes nobody: from now on somebody has to ask it. And nobody may ever wait for a call with
  // a callback: from now on somebody has to look whether its bucket is stuck.
  if (arrives || (was_idle && (has_callback || must_poll_)))
    doorbells_.WakeCoordinator(share_.local_rank);
  if (!complaint.empty()) {
    return MakeError(ErrorKind::kInvalid, "tensor '" + entry->display_name + "': " + complaint);
  }
  return entry->handle;
}

}  // namespace horoacc
