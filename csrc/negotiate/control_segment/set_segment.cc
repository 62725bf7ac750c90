#include "negotiate/control_segment/set_segment.h"

#include <algorithm>
#include <utility>

#include "execute/shared_memory/window_ring.h"

namespace horoacc {
namespace {

// Layout of a set: each part starts on a page of its own.
struct SetLayout {
  explicit SetLayout(uint32_t ranks) {
    size_t at = WholePages(sizeof(SetHeader));
    const auto take = [&](size_t bytes) { return std::exchange(at, at + WholePages(bytes)); };
    ids = take(sizeof(IdEntry) * kIds);
    rows = take(sizeof(Row) * 2 * kIds * ranks);
    cursors = take(sizeof(Cursor) * ranks);
    slots = take(ExecSlot::BytesFor(ranks) * kExecSlots);
    log = take(sizeof(uint32_t) * kLogWords);
    names = take(sizeof(uint32_t) * kNameSlots);
    backlog = take(sizeof(uint32_t) * kIds);
    plan = take(PlanState::BytesFor(kIds));
    outbox = take(sizeof(OutboxHeader) + sizeof(uint32_t) * kOutboxWords);
    infos = take(sizeof(cuda::GpuPeerInfo) * ranks);
    words = take(sizeof(cuda::GpuPeerWords) * ranks * ranks);
    total = at;
  }
  size_t ids, rows, cursors, slots, log, names, backlog, plan, outbox, infos, words, total;
};

}  // namespace

size_t SetSegment::BytesFor(uint32_t ranks) { return SetLayout(ranks).total; }

SetSegment::SetSegment(const ControlSegment& control, uint32_t slot, std::vector<uint32_t> locals,
                       uint32_t me, LockWatch watch)
    : control_(control),
      base_(control.set_memory(slot)),
      locals_(std::move(locals)),
      me_(me),
      watch_(std::move(watch)) {
  const SetLayout layout(ranks());
  ids_ = reinterpret_cast<IdEntry*>(base_ + layout.ids);
  rows_ = reinterpret_cast<Row*>(base_ + layout.rows);
  cursors_ = reinterpret_cast<Cursor*>(base_ + layout.cursors);
  slots_ = base_ + layout.slots;
  log_ = reinterpret_cast<uint32_t*>(base_ + layout.log);
  names_ = NameTable(ids_, reinterpret_cast<uint32_t*>(base_ + layout.names));
  backlog_ = reinterpret_cast<uint32_t*>(base_ + layout.backlog);
  plan_ = PlanState::Over(base_ + layout.plan, kIds, control.fusion_threshold());
  std::byte* const outbox = base_ + layout.outbox;
  outbox_ = Outbox(reinterpret_cast<OutboxHeader*>(outbox),
                   reinterpret_cast<uint32_t*>(outbox + sizeof(OutboxHeader)));
  gpus_ = {reinterpret_cast<cuda::GpuPeerInfo*>(base_ + layout.infos),
           reinterpret_cast<cuda::GpuPeerWords*>(base_ + layout.words), ranks()};
}

ExecSlot& SetSegment::slot(uint64_t number) const {
  return *reinterpret_cast<ExecSlot*>(slots_ + number % kExecSlots * ExecSlot::BytesFor(ranks()));
}

bool SetSegment::FinishUpTo(uint64_t words, std::optional<uint64_t> slots) const {
  Cursor& cursor = cursors_[me_];
  if (slots) cursor.slots.store(*slots, std::memory_order_seq_cst);
  cursor.words.store(words, std::memory_order_seq_cst);
  return header().starved.load(std::memory_order_seq_cst) != 0;
}

bool SetSegment::Starve() const {
  return header().starved.exchange(1, std::memory_order_seq_cst) == 0;
}

uint64_t SetSegment::LeastSlotsFinished() const {
  return LeastOf(ranks(),
                 [this](uint32_t r) { return cursors_[r].slots.load(std::memory_order_seq_cst); });
}

uint64_t SetSegment::LeastWordsFinished() const {
  return LeastOf(ranks(),
                 [this](uint32_t r) { return cursors_[r].words.load(std::memory_order_seq_cst); });
}

std::optional<uint32_t> SetSegment::Known(std::string_view name) const {
  const Guard guard(*this);
  return guard.status().ok() ? names_.Find(ShortName(name)) : std::nullopt;
}

bool SetSegment::CloseGeneration(uint32_t id, uint64_t generation) const {
  std::atomic<Arrivals>& arrivals = ids_[id].arrivals;
  Arrivals seen = arrivals.load(std::memory_order_acquire);
  do {
    if (seen.arrived() == 0 || seen.open() != generation) return false;
  } while (!arrivals.compare_exchange_weak(seen, seen.ClosedWithNext(), std::memory_order_acq_rel));
  return true;
}

Result<SetSegment::NamedId> SetSegment::Lookup(std::string_view whole_name) {
  const std::string name = ShortName(whole_name);
  Guard guard(*this);
  if (!guard.status().ok()) return guard.status().error();
  std::optional<uint32_t> id = names_.Find(name);
  if (!id) {
    HA_ASSIGN(id, FreeId());
    names_.Insert(*id, name);
  }
  return NamedId{*id, ids_[*id].arrivals.load().id_version()};
}

// Once every id is taken, the one that has rested longest goes to the new name. An id rests if no
// rank has submitted it in its present generation and all have finished its last decision. One that
// no decision has named since its name got it is about to be submitted.
Result<uint32_t> SetSegment::FreeId() {
  SetHeader& header = this->header();
  if (header.ids < kNamedIds) return header.ids++;
  const uint64_t finished = LeastWordsFinished();
  const auto rests = [&](uint32_t id, Arrivals arrivals) {
    if (arrivals.arrived() != 0) return false;
    const uint64_t last = ids_[id].last_decision.load(std::memory_order_acquire);
    if (last == 0 || last > finished) return false;
    // Ready on all ranks, but not decided yet.
    return plan_.items[id].waiting == 0 &&
           std::find(backlog_, backlog_ + header.backlog, id) == backlog_ + header.backlog;
  };
  for (;;) {
    uint32_t oldest = kNamedIds;
    Arrivals arrivals;
    for (uint32_t id = 0; id < kNamedIds; ++id) {
      const Arrivals seen = ids_[id].arrivals.load(std::memory_order_acquire);
      if (!rests(id, seen)) continue;
      if (oldest != kNamedIds && ids_[id].last_decision >= ids_[oldest].last_decision) continue;
      oldest = id;
      arrivals = seen;
    }
    if (oldest == kNamedIds) {
      return MakeError(ErrorKind::kInvalid,
                       std::to_string(kNamedIds) + " named tensors are in flight");
    }
    IdEntry& entry = ids_[oldest];
    // A rank that announced it under its old name in this moment keeps it.
    if (!entry.arrivals.compare_exchange_strong(arrivals, arrivals.Renamed())) continue;
    entry.last_decision.store(0, std::memory_order_relaxed);
    ForgetItem(plan_, oldest);
    entry.bucket = 0;
    names_.Remove(oldest);
    return oldest;
  }
}

bool SetSegment::Lags(uint32_t index, TensorKey last) const {
  if (!HasSubmitted(index, last)) return false;
  return cursors_[index].words.load(std::memory_order_seq_cst) <
         ids_[last.id].last_decision.load(std::memory_order_acquire);
}

Request SetSegment::ReadRequest(uint32_t index, uint32_t id, uint64_t generation,
                                const std::byte* memory) const {
  const Row& row = this->row(index, id, generation);
  Request request;
  request.collective = static_cast<Collective>(row.collective);
  request.op = static_cast<ReduceOp>(row.op);
  request.prescale = row.prescale;
  request.postscale = row.postscale;
  request.root = row.root;
  request.on_gpu = row.on_gpu != 0;
  request.way = row.way;
  const auto* tensors =
      row.tensors == 1 ? &row.tensor : reinterpret_cast<const TensorRow*>(memory + row.extra);
  for (uint32_t t = 0; t < row.tensors; ++t) {
    request.tensors.push_back({static_cast<DType>(tensors[t].type),
                               {tensors[t].shape, tensors[t].shape + tensors[t].ndim}});
  }
  const std::byte* extra =
      memory + row.extra + (row.tensors > 1 ? row.tensors * sizeof(TensorRow) : 0);
  const auto* splits = reinterpret_cast<const int64_t*>(extra);
  const int64_t* const receives = splits + row.splits;
  request.splits.assign(splits, receives);
  request.receives.assign(receives, receives + row.receives);
  if (row.error > 0)
    request.local_error.assign(reinterpret_cast<const char*>(receives + row.receives), row.error);
  return request;
}

}  // namespace horoacc
