#include "transport/data/shm/shm_exchange.h"

#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kLookForDeaths = 20 * kMillisecond;

}  // namespace

ShmExchange::ShmExchange(const HostShare& share, ShmRing* rings, Arena& arena,
                         const Doorbells& doorbells, std::function<bool(int)> has_left)
    : share_(share),
      rings_(rings),
      arena_(arena),
      doorbells_(doorbells),
      has_left_(std::move(has_left)),
      backlogs_(share.memory.size()) {}

ShmExchange::~ShmExchange() {
  for (void* block : retired_) arena_.Free(block);
}

ShmRing& ShmExchange::RingOf(int sender, int receiver) const {
  return rings_[static_cast<size_t>(sender) * share_.memory.size() + receiver];
}

Result<int> ShmExchange::PlaceOf(int rank) const {
  const auto found = std::ranges::find(share_.ranks, rank);
  if (found == share_.ranks.end() || rank == RankOf(me())) {
    return MakeError(ErrorKind::kInvalid, "no shared memory with rank " + std::to_string(rank));
  }
  return static_cast<int>(found - share_.ranks.begin());
}

Result<void*> ShmExchange::Allocate(size_t bytes) {
  if (void* block = arena_.Allocate(bytes)) return block;
  return MakeError(ErrorKind::kSystem, "no shared memory left for the slots of a link");
}

void ShmExchange::Free(void* block, bool over) {
  if (over) return arena_.Free(block);
  retired_.push_back(block);
}

void ShmExchange::Note(int peer, const ShmSlot& slot) {
  backlogs_[peer].push_back(OffsetOf(&slot));
  Flush(peer);
}

bool ShmExchange::HasUnsent() const {
  return std::ranges::any_of(backlogs_, [](const auto& notes) { return !notes.empty(); });
}

Result<bool> ShmExchange::Move() {
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(backlogs_.size()); ++peer) {
    if (peer == me()) continue;
    moved |= Flush(peer);
    HA_ASSIGN(const bool drained, Drain(peer));
    moved |= drained;
  }
  return moved;
}

bool ShmExchange::Flush(int peer) {
  std::deque<uint64_t>& notes = backlogs_[peer];
  if (notes.empty()) return false;
  ShmRing& ring = RingOf(me(), peer);
  const uint64_t begin = ring.written.load(std::memory_order_relaxed);
  const uint64_t free = kShmNotes - (begin - ring.read.load(std::memory_order_acquire));
  const uint64_t count = std::min<uint64_t>(free, notes.size());
  for (uint64_t k = 0; k < count; ++k) {
    ring.notes[(begin + k) % kShmNotes] = notes.front();
    notes.pop_front();
  }
  if (count == 0) return false;
  ring.written.store(begin + count, std::memory_order_release);
  Ring(peer);
  return true;
}

Result<bool> ShmExchange::Drain(int peer) {
  ShmRing& ring = RingOf(peer, me());
  const uint64_t begin = ring.read.load(std::memory_order_relaxed);
  const uint64_t end = ring.written.load(std::memory_order_acquire);
  if (begin == end) return false;
  const Segment& memory = MemoryOf(peer);
  for (uint64_t k = begin; k < end; ++k) {
    const uint64_t offset = ring.notes[k % kShmNotes];
    if (offset % alignof(ShmSlot) != 0 || offset > memory.size() - sizeof(ShmSlot)) {
      return MakeError(
          ErrorKind::kMismatch,
          "rank " + std::to_string(RankOf(peer)) + " points to a slot that is not in its memory",
          RankOf(peer));
    }
    auto* slot = reinterpret_cast<ShmSlot*>(memory.data() + offset);
    const ShmLinkName name{{slot->set, slot->sequence}, peer, static_cast<uint8_t>(slot->channel)};
    ShmIncoming& link = incoming[name];
    if (!link.open && link.slots.empty() && name.collective.calls())
      callers.push_back(RankOf(peer));
    link.slots.push_back(slot);
  }
  ring.read.store(end, std::memory_order_release);
  // The peer may be waiting for room.
  if (end - begin == kShmNotes) Ring(peer);
  return true;
}

Status ShmExchange::LookForDeaths() {
  const int64_t now = NowNs();
  if (now < next_look_ns_) return {};
  next_look_ns_ = now + kLookForDeaths;
  for (int peer = 0; peer < static_cast<int>(share_.pidfds.size()); ++peer) {
    if (peer == me() || !share_.pidfds[peer]) continue;
    pollfd death{.fd = share_.pidfds[peer]->get(), .events = POLLIN, .revents = 0};
    if (::poll(&death, 1, 0) <= 0 || (has_left_ && has_left_(peer))) continue;
    return MakeError(ErrorKind::kPeerLost, "rank " + std::to_string(RankOf(peer)) + " has died",
                     RankOf(peer));
  }
  return {};
}

}  // namespace horoacc
