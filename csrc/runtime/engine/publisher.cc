#include "runtime/engine/publisher.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "execute/kernels/finite.h"

namespace horoacc {
namespace {

constexpr uint64_t kSmallExchange = 256 << 10;  // inputs up to here are staged rather than windowed

Error NoRoomFor(const CollectiveEntry& entry) {
  return MakeError(ErrorKind::kSystem,
                   "shared memory is exhausted: no room to publish '" + entry.display_name + "'");
}

}  // namespace

void Publisher::CheckNumerics(CollectiveEntry& entry) const {
  Request& request = entry.request;
  if (!job_.settings.check_numerics || !request.local_error.empty()) return;
  if (!Reduces(request.collective)) return;
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorMeta& tensor = request.tensors[t];
    const uint64_t count = tensor.bytes() / SizeOf(tensor.type);
    const auto found = FirstNotFinite(entry.tensors[t].input, tensor.type, count);
    if (!found) continue;
    request.local_error =
        "element " + std::to_string(*found) + " of " + std::to_string(count) +
        (request.tensors.size() > 1 ? " of tensor " + std::to_string(t) + " of the group" : "") +
        " is infinite or not a number (setting 'check_numerics')";
    return;
  }
}

Status Publisher::PublishInTurn(ProcessSet& set, const std::shared_ptr<CollectiveEntry>& entry) {
  if (!set.queue.in_flight.Contains(entry->id)) return Publish(set, entry);
  set.queue.backlog.push_back(entry);
  return {};
}

Status Publisher::Publish(ProcessSet& set, const std::shared_ptr<CollectiveEntry>& entry) {
  for (;;) {
    entry->generation = set.control->id(entry->id).arrivals.load(std::memory_order_acquire).open();
    HA_TRY(PublishRow(set, *entry, entry->generation));
    set.queue.in_flight.Insert(entry);
    const Result<Announced> announced =
        set.controller->Announce({entry->id, entry->generation, entry->id_version});
    if (announced.ok() && announced.value() == Announced::kTaken) return {};
    set.queue.in_flight.Erase(*entry);
    if (!announced.ok()) return announced.error();
    // No rank may take the row for a call of the id's next name.
    set.control->row(set.context.me, entry->id, entry->generation)
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

Status Publisher::LookUpAgain(ProcessSet& set, CollectiveEntry& entry) {
  HA_ASSIGN(const SetSegment::NamedId found, set.control->Lookup(entry.name()));
  NameRecord& record = *entry.reservation;
  record.id = entry.id = found.id;
  record.id_version = entry.id_version = found.id_version;
  return {};
}

Status Publisher::Place(ProcessSet& set, CollectiveEntry& entry) {
  const bool allreduce = entry.request.collective == Collective::kAllreduce;
  const PathKind path = job_.settings.reduce_path;
  const bool adasum = allreduce && entry.request.op == ReduceOp::kAdasum;
  // Between hosts, what travels with the news of the call.
  if (set.multi_host && set.multi_host->eager().BytesOf(entry.request) == 0) return {};
  const uint64_t limit = path == PathKind::kStaged || adasum || set.multi_host
                             ? std::numeric_limits<uint64_t>::max()
                         : path == PathKind::kWindows ? 0
                         : allreduce                  ? job_.tuned.last_arriver_bytes()
                                                      : kSmallExchange;
  if (IsBarrier(entry.request.collective)) return {};
  if (entry.device && !entry.device->has_host_memory())
    return {};  // it is not in the host's memory
  const bool is_root = entry.request.root == job_.rank();
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    EntryTensor& tensor = entry.tensors[t];
    uint64_t bytes = entry.request.tensors[t].bytes();
    const Collective collective = entry.request.collective;
    if (collective == Collective::kScatter) bytes *= set.context.ranks;
    if (tensor.staged || bytes == 0) continue;
    const bool root_gives =
        collective == Collective::kBroadcast || collective == Collective::kScatter;
    if (HasRoot(collective) && is_root != root_gives) continue;
    const bool input_shared = path != PathKind::kWindows && job_.arena->Contains(tensor.input);
    const bool output_shared = path != PathKind::kWindows && job_.arena->Contains(tensor.output);
    const bool result_shared = output_shared || !allreduce || set.multi_host;
    if ((input_shared && result_shared) || bytes > limit || set.ranks.size() == 1) continue;
    tensor.staged = static_cast<std::byte*>(job_.blocks.Allocate(bytes));
    if (!tensor.staged && adasum) return NoRoomFor(entry);
    if (!tensor.staged) continue;  // shared memory is exhausted: windows will do
    if (!input_shared) std::memcpy(tensor.staged, tensor.input, bytes);
    tensor.stage_output = !result_shared;
    job_.counters.staged_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  return {};
}

Status Publisher::PublishRow(ProcessSet& set, CollectiveEntry& entry, uint64_t generation) {
  const Request& request = entry.request;
  if (request.local_error.empty()) HA_TRY(Place(set, entry));
  Row& row = set.control->row(set.context.me, entry.id, generation);
  row.signature = request.Signature();
  row.sequence = ++set.queue.sequence;
  if (!entry.named) row.number = entry.number;
  row.sync_round = entry.sync_round;
  row.prescale = request.prescale;
  row.postscale = request.postscale;
  if (entry.proposal.plan != 0)
    entry.proposal.number = generation + set.control->id(entry.id).behind.load();
  row.proposes = entry.proposal.plan != 0 ? 1 : 0;
  if (row.proposes != 0 || set.multi_host) row.proposal = entry.proposal;
  if (set.multi_host) row.way = request.way;
  row.recurs = entry.recurs;
  row.root = request.root;
  row.collective = static_cast<uint8_t>(request.collective);
  row.op = static_cast<uint8_t>(request.op);
  row.notify.store(entry.done ? 1 : 0, std::memory_order_relaxed);
  const int device = entry.device ? entry.device->gpu()->device() : 0;
  row.on_gpu = request.on_gpu ? static_cast<uint8_t>(1 + device) : 0;
  row.stays_on_gpu = entry.device && !entry.device->has_host_memory() ? 1 : 0;
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
    if (!entry.extra) entry.extra = static_cast<std::byte*>(job_.blocks.Allocate(extra_bytes));
    if (!entry.extra) {
      return NoRoomFor(entry);
    }
    row.extra = job_.arena->OffsetOf(entry.extra);
    if (group) rows = reinterpret_cast<TensorRow*>(entry.extra);
    // Not memcpy: either may be empty, and then has no address.
    std::byte* at =
        std::ranges::copy(std::as_bytes(std::span(request.splits)), entry.extra + tensor_bytes).out;
    at = std::ranges::copy(std::as_bytes(std::span(request.receives)), at).out;
    std::ranges::copy(std::as_bytes(std::span(request.local_error)), at);
  }
  const auto offset = [&](const void* memory) {
    const bool hidden = job_.settings.reduce_path == PathKind::kWindows;
    return !hidden && job_.arena->Contains(memory) ? job_.arena->OffsetOf(memory) : kPrivate;
  };
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const EntryTensor& tensor = entry.tensors[t];
    TensorRow& published = rows[t];
    published.type = static_cast<uint8_t>(request.tensors[t].type);
    published.ndim = static_cast<uint8_t>(request.tensors[t].shape.size());
    std::copy_n(request.tensors[t].shape.begin(), published.ndim, published.shape);
    published.input = offset(tensor.input);
    if (published.input == kPrivate && tensor.staged)
      published.input = job_.arena->OffsetOf(tensor.staged);
    published.output =
        tensor.stage_output ? job_.arena->OffsetOf(tensor.staged) : offset(tensor.output);
  }
  row.generation.store(generation, std::memory_order_release);
  return {};
}

Status Publisher::PublishBacklog(ProcessSet& set) {
  SetQueue& queue = set.queue;
  // What still has to wait, or has to again, comes back in its order.
  std::deque<std::shared_ptr<CollectiveEntry>> waiting = std::exchange(queue.backlog, {});
  for (; !waiting.empty(); waiting.pop_front()) {
    const std::shared_ptr<CollectiveEntry>& next = waiting.front();
    Status published;
    const auto holder = queue.in_flight.Find(next->id);
    if (holder && holder->name() != next->name())
      published = LookUpAgain(set, *next);  // see Submit
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

Status Publisher::AnnounceJoin(ProcessSet& set) {
  SetQueue& queue = set.queue;
  if (queue.joins.empty() || queue.join_announced) return {};
  if (!queue.backlog.empty() || !queue.pending_copies.empty()) return {};
  queue.join_announced = true;
  return set.controller->Join(queue.unnamed);
}

}  // namespace horoacc
