// From a framework's call to a published row: validation, staging, announcement.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "execute/finite.h"
#include "execute/reduce.h"
#include "negotiate/assemble_reduce.h"
#include "runtime/engine.h"

namespace horoacc {
namespace {

constexpr uint64_t kSmallExchange = 256 << 10;  // inputs up to here are staged rather than windowed

Error NoRoomFor(const Entry& entry) {
  return MakeError(ErrorKind::kSystem,
                   "shared memory is exhausted: no room to publish '" + entry.shown_name + "'");
}

}  // namespace

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
  {
    std::lock_guard lock(failure_mutex_);
    if (failure_) return BlameRefusal(*failure_, submission.name);
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
    entry->shown_name = NameOf(Collective::kJoin);
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
      HA_ASSIGN(const SetBoard::NamedId found, set->board->Lookup(entry->name));
      record.id = found.id;
      record.incarnation = found.incarnation;
      record.known = true;
    }
    entry->id = record.id;
    entry->incarnation = record.incarnation;
    entry->shown_name = std::move(submission.name);
    entry->handle = handles_.Add(entry);
    record.held_by = entry->handle;
    entry->reservation = &record;
  } else {
    const uint64_t number = entry->number = queue.unnamed++;
    entry->id = kNamedIds + static_cast<uint32_t>(number % kUnnamedIds);
    entry->shown_name =
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
      return BlameRefusal(*failure_, entry->shown_name);
    }
  }
  if (join && queue.join_over && !queue.join_over->taken) return TakeOverJoin(queue, *entry);
  queue.join_over.reset();
  const bool was_idle = queue.pending.fetch_add(1, std::memory_order_relaxed) == 0;
  counters_.submissions.fetch_add(1, std::memory_order_relaxed);
  events_.Emit(Phase::kQueued, set->id, entry->handle, 0, 0, entry->shown_name,
               NameOf(entry->request.collective));
  if (!complaint.empty()) {
    // The other ranks must hear of it too, or they would wait for ever: the bad call is published
    // as such, and nobody here holds its handle.
    entry->released = true;
    entry->done = nullptr;
    if (entry->reservation) entry->reservation->held_by = 0;
    handles_.Remove(entry->handle);
    events_.Emit(Phase::kReleased, set->id, entry->handle, 0, 0, entry->shown_name);
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
    bells_.WakeCoordinator(share_.local_rank);
  if (!complaint.empty()) {
    return MakeError(ErrorKind::kInvalid, "tensor '" + entry->shown_name + "': " + complaint);
  }
  return entry->handle;
}

// Behind an earlier call of its id, if there is one.
Status Engine::PublishInTurn(ProcessSet& set, const std::shared_ptr<Entry>& entry) {
  if (!set.queue.in_flight.Contains(entry->id)) return Publish(set, entry);
  set.queue.backlog.push_back(entry);
  return {};
}

Status Engine::Publish(ProcessSet& set, const std::shared_ptr<Entry>& entry) {
  for (;;) {
    entry->generation = set.board->id(entry->id).arrivals.load(std::memory_order_acquire).open();
    HA_TRY(PublishRow(set, *entry, entry->generation));
    set.queue.in_flight.Insert(entry);
    std::vector<const std::byte*> inputs;
    if (set.spread) {
      for (const EntryTensor& tensor : entry->tensors) inputs.push_back(tensor.input);
    }
    const Result<Announced> announced =
        set.plane->Announce({entry->id, entry->generation, entry->incarnation, &entry->request,
                             entry->name, entry->number, inputs});
    if (announced.ok() && announced.value() == Announced::kTaken) return {};
    set.queue.in_flight.Erase(*entry);
    if (!announced.ok()) return announced.error();
    // Nobody may take the row for a call of the id's next name.
    set.board->row(set.context.me, entry->id, entry->generation)
        .generation.store(0, std::memory_order_release);
    if (!entry->reservation) continue;  // the generation was closed under us: publish for the next
    // The same, or the id was given to another name since this rank looked it up.
    HA_TRY(LookUpAgain(set, *entry));
    if (set.queue.in_flight.Contains(entry->id)) {
      set.queue.backlog.push_back(entry);
      return {};
    }
  }
}

Status Engine::LookUpAgain(ProcessSet& set, Entry& entry) {
  HA_ASSIGN(const SetBoard::NamedId found, set.board->Lookup(entry.name));
  NameRecord& record = *entry.reservation;
  record.id = entry.id = found.id;
  record.incarnation = entry.incarnation = found.incarnation;
  return {};
}

// Decides where peers find the entry's data: where the caller has it, in a staged copy, or
// (nullptr staged, private row) in window rings later; Adasum has no windows.
Status Engine::Place(ProcessSet& set, Entry& entry) {
  const bool allreduce = entry.request.collective == Collective::kAllreduce;
  const PathKind path = settings_.reduce_path;
  const bool adasum = allreduce && entry.request.op == ReduceOp::kAdasum;
  const uint64_t limit = path == PathKind::kStaged || adasum ? std::numeric_limits<uint64_t>::max()
                         : path == PathKind::kWindows        ? 0
                         : allreduce                         ? settings_.last_arriver_bytes
                                                             : kSmallExchange;
  if (IsBarrier(entry.request.collective)) return {};
  if (entry.device && !entry.device->fetched()) return {};  // it is not in the host's memory
  const bool is_root = entry.request.root == placement_.rank;
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    EntryTensor& tensor = entry.tensors[t];
    uint64_t bytes = entry.request.tensors[t].bytes();
    const Collective collective = entry.request.collective;
    if (collective == Collective::kScatter) bytes *= set.context.ranks;
    if (tensor.staged || bytes == 0) continue;
    const bool root_gives =
        collective == Collective::kBroadcast || collective == Collective::kScatter;
    if (HasRoot(collective) && is_root != root_gives) continue;
    const bool input_shared = path != PathKind::kWindows && arena_->Contains(tensor.input);
    const bool output_shared = path != PathKind::kWindows && arena_->Contains(tensor.output);
    if ((input_shared && (output_shared || !allreduce)) || bytes > limit ||
        set.context.ranks == 1) {
      continue;
    }
    tensor.staged = static_cast<std::byte*>(AllocateShared(bytes));
    if (!tensor.staged && adasum) return NoRoomFor(entry);
    if (!tensor.staged) continue;  // shared memory is exhausted: windows will do
    if (!input_shared) std::memcpy(tensor.staged, tensor.input, bytes);
    tensor.stage_output = allreduce && !output_shared;
    counters_.staged_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  return {};
}

Status Engine::PublishRow(ProcessSet& set, Entry& entry, uint64_t generation) {
  const Request& request = entry.request;
  if (request.local_error.empty()) HA_TRY(Place(set, entry));
  Row& row = set.board->row(set.context.me, entry.id, generation);
  row.signature = request.Signature();
  row.sequence = ++set.queue.sequence;
  row.pause = entry.pause;
  row.prescale = request.prescale;
  row.postscale = request.postscale;
  row.root = request.root;
  row.collective = static_cast<uint8_t>(request.collective);
  row.op = static_cast<uint8_t>(request.op);
  row.notify = entry.done ? 1 : 0;
  const int device = entry.device ? entry.device->gpu()->device() : 0;
  row.on_gpu = request.on_gpu ? static_cast<uint8_t>(1 + device) : 0;
  row.tensors = static_cast<uint32_t>(request.tensors.size());
  row.splits = static_cast<uint32_t>(request.splits.size());
  row.receives = static_cast<uint32_t>(request.receives.size());
  row.error = static_cast<uint32_t>(request.local_error.size());

  const bool group = row.tensors > 1;
  const size_t tensor_bytes = group ? row.tensors * sizeof(TensorRow) : 0;
  const size_t split_bytes = (row.splits + row.receives) * sizeof(int64_t);
  const size_t extra_bytes = tensor_bytes + split_bytes + row.error;
  TensorRow* rows = &row.tensor;
  if (extra_bytes > 0) {
    if (!entry.extra) entry.extra = static_cast<std::byte*>(AllocateShared(extra_bytes));
    if (!entry.extra) {
      return NoRoomFor(entry);
    }
    row.extra = arena_->OffsetOf(entry.extra);
    if (group) rows = reinterpret_cast<TensorRow*>(entry.extra);
    // Not memcpy: either may be empty, and then has no address.
    std::byte* at =
        std::ranges::copy(std::as_bytes(std::span(request.splits)), entry.extra + tensor_bytes).out;
    at = std::ranges::copy(std::as_bytes(std::span(request.receives)), at).out;
    std::ranges::copy(std::as_bytes(std::span(request.local_error)), at);
  }
  const auto offset = [&](const void* memory) {
    const bool hidden = settings_.reduce_path == PathKind::kWindows;
    return !hidden && arena_->Contains(memory) ? arena_->OffsetOf(memory) : kPrivate;
  };
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const EntryTensor& tensor = entry.tensors[t];
    TensorRow& published = rows[t];
    published.type = static_cast<uint8_t>(request.tensors[t].type);
    published.ndim = static_cast<uint8_t>(request.tensors[t].shape.size());
    std::copy_n(request.tensors[t].shape.begin(), published.ndim, published.shape);
    published.input = offset(tensor.input);
    if (published.input == kPrivate && tensor.staged)
      published.input = arena_->OffsetOf(tensor.staged);
    published.output =
        tensor.stage_output ? arena_->OffsetOf(tensor.staged) : offset(tensor.output);
  }
  row.generation.store(generation, std::memory_order_release);
  return {};
}

Status Engine::PublishBacklog(ProcessSet& set) {
  SetQueue& queue = set.queue;
  // What still has to wait, or has to again, comes back in its order.
  std::deque<std::shared_ptr<Entry>> waiting = std::exchange(queue.backlog, {});
  for (; !waiting.empty(); waiting.pop_front()) {
    const std::shared_ptr<Entry>& next = waiting.front();
    Status published;
    const auto holder = queue.in_flight.Find(next->id);
    if (holder && holder->name != next->name) published = LookUpAgain(set, *next);  // see Submit
    if (published.ok() && queue.in_flight.Contains(next->id)) {
      queue.backlog.push_back(next);
      continue;
    }
    if (published.ok()) published = Publish(set, next);
    if (!published.ok()) {
      // The abort that follows completes them.
      queue.backlog.insert(queue.backlog.end(), waiting.begin(), waiting.end());
      return published;
    }
  }
  return {};
}

}  // namespace horoacc
