#include "negotiate/set_board.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Layout of a set: each part starts on a page of its own.
struct SetLayout {
  explicit SetLayout(uint32_t ranks) {
    size_t at = RoundUp(sizeof(SetHeader));
    const auto take = [&](size_t bytes) { return std::exchange(at, at + RoundUp(bytes)); };
    ids = take(sizeof(IdEntry) * kIds);
    rows = take(sizeof(Row) * 2 * kIds * ranks);
    cursors = take(sizeof(Cursor) * ranks);
    slots = take(ExecSlot::BytesFor(ranks) * kExecSlots);
    log = take(sizeof(uint32_t) * kLogWords);
    names = take(sizeof(uint32_t) * kNameSlots);
    backlog = take(sizeof(uint32_t) * kIds);
    plan = take(PlanState::BytesFor(kIds));
    total = at;
  }
  size_t ids, rows, cursors, slots, log, names, backlog, plan, total;
};

}  // namespace

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash ^ (hash >> 29);
}

// ---- HostBoard

HostBoard::HostBoard(const HostShare& share, uint64_t fusion_threshold)
    : base_(share.board.data()),
      ranks_(share.ranks),
      local_size_(static_cast<uint32_t>(share.ranks.size())),
      fusion_threshold_(fusion_threshold) {}

size_t HostBoard::BytesFor(uint32_t local_size) {
  return RoundUp(sizeof(HostHeader)) + RoundUp(sizeof(Bell) * local_size) +
         RoundUp(sizeof(RankState) * local_size) + kMaxProcessSets * SetBoard::BytesFor(local_size);
}

Bell* HostBoard::bells() const {
  return reinterpret_cast<Bell*>(base_ + RoundUp(sizeof(HostHeader)));
}

RankState& HostBoard::state(uint32_t local_rank) const {
  return reinterpret_cast<RankState*>(base_ + RoundUp(sizeof(HostHeader)) +
                                      RoundUp(sizeof(Bell) * local_size_))[local_rank];
}

std::byte* HostBoard::set_memory(uint32_t slot) const {
  return base_ + RoundUp(sizeof(HostHeader)) + RoundUp(sizeof(Bell) * local_size_) +
         RoundUp(sizeof(RankState) * local_size_) + slot * SetBoard::BytesFor(local_size_);
}

void HostBoard::WipeSet(uint32_t slot) const {
  std::byte* const memory = set_memory(slot);
  const size_t bytes = SetBoard::BytesFor(local_size_);
  // Gives the pages back, on all ranks; they read as zeroes then.
  if (::madvise(memory, bytes, MADV_REMOVE) != 0) std::memset(memory, 0, bytes);
}

bool HostBoard::Abort(const Error& error) const {
  HostHeader& header = this->header();
  uint64_t none = 0;
  const uint64_t word =
      static_cast<uint64_t>(error.kind) << 32 | static_cast<uint32_t>(error.culprit + 1);
  if (!header.abort_word.compare_exchange_strong(none, word, std::memory_order_acq_rel))
    return false;
  const size_t length = std::min(error.message.size(), sizeof header.abort_text - 1);
  std::memcpy(header.abort_text, error.message.data(), length);
  header.abort_text_ready.store(1, std::memory_order_release);
  return true;
}

Error HostBoard::aborted() const {
  const HostHeader& header = this->header();
  const uint64_t word = header.abort_word.load(std::memory_order_acquire);
  if (word == 0) return MakeError(ErrorKind::kOk, "");
  // The text follows within nanoseconds, unless the writer died in between.
  for (int spin = 0; spin < 1000 && header.abort_text_ready.load(std::memory_order_acquire) == 0;
       ++spin) {
    sched_yield();
  }
  const bool ready = header.abort_text_ready.load(std::memory_order_acquire) != 0;
  return MakeError(static_cast<ErrorKind>(word >> 32),
                   ready ? header.abort_text : "the job was aborted",
                   static_cast<int>(word & 0xffffffff) - 1);
}

// ---- SetBoard

size_t SetBoard::BytesFor(uint32_t ranks) { return SetLayout(ranks).total; }

SetBoard::SetBoard(const HostBoard& board, uint32_t slot, std::vector<uint32_t> locals, uint32_t me,
                   std::function<bool(uint32_t)> alive)
    : board_(board),
      base_(board.set_memory(slot)),
      locals_(std::move(locals)),
      me_(me),
      alive_(std::move(alive)) {
  const SetLayout layout(ranks());
  ids_ = reinterpret_cast<IdEntry*>(base_ + layout.ids);
  rows_ = reinterpret_cast<Row*>(base_ + layout.rows);
  cursors_ = reinterpret_cast<Cursor*>(base_ + layout.cursors);
  slots_ = base_ + layout.slots;
  log_ = reinterpret_cast<uint32_t*>(base_ + layout.log);
  names_ = reinterpret_cast<uint32_t*>(base_ + layout.names);
  backlog_ = reinterpret_cast<uint32_t*>(base_ + layout.backlog);
  plan_ = PlanState::Over(base_ + layout.plan, kIds, board.fusion_threshold());
}

Row& SetBoard::row(uint32_t index, uint32_t id, uint64_t generation) const {
  return rows_[(static_cast<size_t>(index) * kIds + id) * 2 + generation % 2];
}

ExecSlot& SetBoard::slot(uint64_t number) const {
  return *reinterpret_cast<ExecSlot*>(slots_ + number % kExecSlots * ExecSlot::BytesFor(ranks()));
}

bool SetBoard::FinishUpTo(uint64_t words, std::optional<uint64_t> slots) const {
  Cursor& cursor = cursors_[me_];
  if (slots) cursor.slots.store(*slots, std::memory_order_seq_cst);
  cursor.words.store(words, std::memory_order_seq_cst);
  return header().starved.load(std::memory_order_seq_cst) != 0;
}

bool SetBoard::Starve() const {
  return header().starved.exchange(1, std::memory_order_seq_cst) == 0;
}

uint64_t SetBoard::LeastSlotsFinished() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (uint32_t r = 0; r < ranks(); ++r) {
    least = std::min(least, cursors_[r].slots.load(std::memory_order_seq_cst));
  }
  return least;
}

uint64_t SetBoard::LeastWordsFinished() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (uint32_t r = 0; r < ranks(); ++r) {
    least = std::min(least, cursors_[r].words.load(std::memory_order_seq_cst));
  }
  return least;
}

SetBoard::Guard::Guard(const SetBoard& board) : board_(board) {
  std::atomic<uint32_t>& owner = board.header().lock.owner;
  const uint32_t mine = board.locals_[board.me_] + 1;
  int64_t next_look = NowNs() + 20 * kMillisecond;
  for (uint64_t turn = 0;; ++turn) {
    uint32_t free = 0;
    if (owner.compare_exchange_weak(free, mine, std::memory_order_acquire)) return;
    if (turn < 64) {
      __builtin_ia32_pause();
      continue;
    }
    // The owner may have lost its core: give ours away rather than wait for it here.
    sched_yield();
    if (turn % 64 != 0 || NowNs() < next_look) continue;
    next_look = NowNs() + 20 * kMillisecond;
    if (const Error aborted = board.board_.aborted(); aborted.kind != ErrorKind::kOk) {
      status_ = aborted;
      return;
    }
    if (const uint32_t holder = owner.load(); holder != 0 && !board.alive_(holder - 1)) {
      status_ = MakeError(ErrorKind::kPeerLost,
                          "rank " + std::to_string(board.board_.rank_of(holder - 1)) +
                              " died while it held the board's lock",
                          board.board_.rank_of(holder - 1));
      return;
    }
  }
}

SetBoard::Guard::~Guard() {
  if (status_.ok()) board_.header().lock.owner.store(0, std::memory_order_release);
}

// The table is twice as large as there are names, so a free place ends every chain.
SetBoard::Place SetBoard::Probe(std::string_view name) const {
  const uint64_t hash = HashName(name);
  Place place{static_cast<uint32_t>(hash % kNameSlots), std::nullopt};
  for (; names_[place.slot] != 0; place.slot = (place.slot + 1) % kNameSlots) {
    const uint32_t id = names_[place.slot] - 1;
    if (ids_[id].name_hash == hash && ids_[id].name_length == name.size() &&
        name.substr(0, kMaxName) == NameOf(id)) {
      place.id = id;
      return place;
    }
  }
  return place;
}

// Moves up what stands behind `id` in its chain only because the place was taken: nobody gets lost
// behind the hole, and chains become no longer with time.
void SetBoard::RemoveFromTable(uint32_t id) {
  uint32_t hole = static_cast<uint32_t>(ids_[id].name_hash % kNameSlots);
  while (names_[hole] != id + 1) hole = (hole + 1) % kNameSlots;
  for (uint32_t at = (hole + 1) % kNameSlots; names_[at] != 0; at = (at + 1) % kNameSlots) {
    const auto home = static_cast<uint32_t>(ids_[names_[at] - 1].name_hash % kNameSlots);
    const uint32_t from_home = (at + kNameSlots - home) % kNameSlots;
    const uint32_t from_hole = (at + kNameSlots - hole) % kNameSlots;
    if (from_home < from_hole) continue;  // its own place lies behind the hole
    names_[hole] = names_[at];
    hole = at;
  }
  names_[hole] = 0;
}

std::optional<uint32_t> SetBoard::Known(std::string_view name) const {
  const Guard guard(*this);
  return guard.status().ok() ? Probe(name).id : std::nullopt;
}

bool SetBoard::CloseGeneration(uint32_t id, uint64_t generation) const {
  std::atomic<uint64_t>& arrivals = ids_[id].arrivals;
  uint64_t seen = arrivals.load(std::memory_order_acquire);
  do {
    if ((seen & 0xffff) == 0 || (seen >> 16 & 0xffffffff) + 1 != generation) return false;
  } while (!arrivals.compare_exchange_weak(seen, (seen & ~0xffffull) + 0x20000,
                                           std::memory_order_acq_rel));
  return true;
}

Result<SetBoard::NamedId> SetBoard::Lookup(std::string_view name) {
  Guard guard(*this);
  if (!guard.status().ok()) return guard.status().error();
  if (const Place place = Probe(name); place.id) {
    return NamedId{*place.id, static_cast<uint32_t>(ids_[*place.id].arrivals.load() >> 48)};
  }
  HA_ASSIGN(const uint32_t id, FreeId());
  IdEntry& entry = ids_[id];
  entry.name_hash = HashName(name);
  entry.name_length = static_cast<uint32_t>(name.size());
  std::memcpy(entry.name, name.data(), std::min<size_t>(name.size(), kMaxName));
  names_[Probe(name).slot] = id + 1;
  return NamedId{id, static_cast<uint32_t>(entry.arrivals.load() >> 48)};
}

// Once every id is taken, the one that has rested longest goes to the new name. An id rests if no
// rank has submitted it in its present generation and all have finished its last decision. One that
// no decision has named since its name got it is about to be submitted.
Result<uint32_t> SetBoard::FreeId() {
  SetHeader& header = this->header();
  if (header.ids < kNamedIds) return header.ids++;
  const uint64_t finished = LeastWordsFinished();
  const auto rests = [&](uint32_t id, uint64_t arrivals) {
    if ((arrivals & 0xffff) != 0) return false;
    const uint64_t last = ids_[id].last_decision.load(std::memory_order_acquire);
    if (last == 0 || last > finished) return false;
    // Ready on all ranks, but not decided yet.
    return plan_.items[id].waiting == 0 &&
           std::find(backlog_, backlog_ + header.backlog, id) == backlog_ + header.backlog;
  };
  for (;;) {
    uint32_t oldest = kNamedIds;
    uint64_t arrivals = 0;
    for (uint32_t id = 0; id < kNamedIds; ++id) {
      const uint64_t seen = ids_[id].arrivals.load(std::memory_order_acquire);
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
    const uint64_t next = ((arrivals >> 48) + 1) << 48 | (arrivals & 0xffffffff0000ull);
    // A rank that announced it under its old name in this moment keeps it.
    if (!entry.arrivals.compare_exchange_strong(arrivals, next)) continue;
    entry.last_decision.store(0, std::memory_order_relaxed);
    ForgetItem(plan_, oldest);
    RemoveFromTable(oldest);
    entry.name_length = 0;
    return oldest;
  }
}

std::string SetBoard::NameOf(uint32_t id) const {
  const IdEntry& entry = ids_[id];
  return std::string(entry.name, std::min(entry.name_length, kMaxName));
}

Request SetBoard::ReadRequest(uint32_t index, uint32_t id, uint64_t generation,
                              const std::byte* memory) const {
  const Row& row = this->row(index, id, generation);
  Request request;
  request.collective = static_cast<Collective>(row.collective);
  request.op = static_cast<ReduceOp>(row.op);
  request.prescale = row.prescale;
  request.postscale = row.postscale;
  request.root = row.root;
  const auto* tensors =
      row.tensors == 1 ? &row.tensor : reinterpret_cast<const TensorRow*>(memory + row.extra);
  for (uint32_t t = 0; t < row.tensors; ++t) {
    request.tensors.push_back({static_cast<DType>(tensors[t].type),
                               {tensors[t].shape, tensors[t].shape + tensors[t].ndim}});
  }
  const std::byte* extra =
      memory + row.extra + (row.tensors > 1 ? row.tensors * sizeof(TensorRow) : 0);
  const auto* splits = reinterpret_cast<const int64_t*>(extra);
  request.splits.assign(splits, splits + row.splits);
  if (row.error > 0) {
    request.local_error.assign(reinterpret_cast<const char*>(extra) + row.splits * sizeof(int64_t),
                               row.error);
  }
  return request;
}

}  // namespace horoacc
