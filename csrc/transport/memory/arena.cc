#include "transport/memory/arena.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/page.h"
#include "transport/memory/owner_mark.h"
#include "transport/net/fd.h"

namespace horoacc {
namespace {

constexpr uint64_t kAlignment = 64;
const uint64_t kPage = PageSize();
/// Blocks below a page are cut from slabs of this size, so that small tensors share pages.
constexpr uint64_t kSlab = kLargestPage;
/// Fresh memory is faulted in by batches of this size, ahead of its first use.
constexpr uint64_t kPopulateBatch = 2 * 1024 * 1024;
/// One allocation faults in at most so much; the rest is faulted in by its use.
constexpr uint64_t kPopulateLimit = 256 * 1024 * 1024;
constexpr int kSnapshotWaitMs = 10'000;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Four classes a doubling: at most a fifth of a block's address range is unused.
uint64_t SizeClass(uint64_t bytes) {
  bytes = std::max(bytes, kAlignment);
  const uint64_t quarter = std::bit_floor(bytes) / 4;
  const uint64_t size = RoundUp(bytes, std::max(quarter, kAlignment));
  return size > kPage / 2 ? RoundUp(size, kPage) : size;
}

struct Block {
  uint64_t size_class = 0;
  uint64_t asked = 0;     ///< bytes of the current or last allocation
  uint64_t resident = 0;  ///< bytes of its pages in memory
  uint64_t freed_at = 0;  ///< number of Trims before it was freed
  bool live = false;
};

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

}  // namespace

struct Arena::State {
  State(std::byte* start, size_t size, int descriptor, size_t offset)
      : base(start), bytes(size), fd(descriptor), fd_offset(offset) {}

  std::byte* const base;
  std::atomic<uint64_t> bytes;  ///< shrinks once, in Close
  const int fd;
  const uint64_t fd_offset;
  OwnerMark owner;

  mutable std::mutex mutex;
  std::unordered_map<uint64_t, Block> blocks;            ///< by offset, every block ever cut
  std::map<uint64_t, std::vector<uint64_t>> free_lists;  ///< by class; the back is the warmest
  uint64_t next = 0;                                     ///< where the next new block begins
  uint64_t populated = 0;                                ///< end of the memory faulted in
  uint64_t trims = 0;
  uint64_t allocations = 0;
  uint64_t in_use = 0;
  uint64_t touched = 0;
  bool gives_out = true;  ///< until StopAllocating or Close
  bool closed = false;
  Segment ground;  ///< the arena's memory, after Own

  Fd snapshot_wait;  ///< during a fork: the parent's end of the pipe
  Fd snapshot_done;  ///< during a fork: the child's end

  bool Cut(uint64_t size_class, Range* fresh, uint64_t asked);
  bool TakeFree(uint64_t size_class, uint64_t* offset);
  [[nodiscard]] Range ClaimFresh(uint64_t begin, uint64_t asked, uint64_t size_class);
  void Populate(Range range) const;
  bool Punch(uint64_t offset, uint64_t size) const;
  void LeaveIfEmpty();
};

/// The range to fault in for a block just cut at `begin`: at least a batch.
Range Arena::State::ClaimFresh(uint64_t begin, uint64_t asked, uint64_t size_class) {
  Range range{std::max(populated, begin), begin + std::min(asked, kPopulateLimit)};
  if (range.begin >= range.end) return {};
  range.end = std::min(RoundUp(range.end, kPopulateBatch), bytes.load());
  populated = std::max(range.end, begin + size_class);
  return range;
}

/// Cuts new blocks of the class off the end and puts them on its free list.
bool Arena::State::Cut(uint64_t size_class, Range* fresh, uint64_t asked) {
  const bool small = size_class < kPage;
  uint64_t take = small ? kSlab : size_class;
  if (take > bytes - next) {
    if (!small || size_class > bytes - next) return false;
    take = bytes - next;
  }
  *fresh = ClaimFresh(next, small ? take : asked, take);
  std::vector<uint64_t>& list = free_lists[size_class];
  const uint64_t count = take / size_class;
  for (uint64_t index = count; index-- > 0;) {  // backwards: the lowest is used first
    const uint64_t offset = next + index * size_class;
    blocks.emplace(offset, Block{.size_class = size_class, .freed_at = trims});
    list.push_back(offset);
  }
  next += take;
  return true;
}

/// Takes the warmest free block of the class.
bool Arena::State::TakeFree(uint64_t size_class, uint64_t* offset) {
  const auto list = free_lists.find(size_class);
  if (list == free_lists.end() || list->second.empty()) return false;
  *offset = list->second.back();
  list->second.pop_back();
  return true;
}

void Arena::State::Populate(Range range) const {
#ifdef MADV_POPULATE_WRITE
  // Kernels before 5.14 lack it; there the first writes fault, one page at a time.
  if (range.begin < range.end) {
    ::madvise(base + range.begin, range.end - range.begin, MADV_POPULATE_WRITE);
  }
#endif
}

bool Arena::State::Punch(uint64_t offset, uint64_t size) const {
  if (fd >= 0) {
    return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<off_t>(fd_offset + offset), static_cast<off_t>(size)) == 0;
  }
  return ::madvise(base + offset, size, MADV_REMOVE) == 0;
}

Arena::Arena(std::byte* base, size_t bytes, int fd, size_t fd_offset)
    : state_(std::make_unique<State>(base, bytes / kPage * kPage, fd, fd_offset)) {
  assert(reinterpret_cast<uintptr_t>(base) % kPage == 0 && fd_offset % kPage == 0);
}

Arena::~Arena() = default;

void* Arena::Allocate(size_t bytes) {
  State& state = *state_;
  if (!state.owner.Here() || bytes > state.bytes) return nullptr;
  const uint64_t size_class = SizeClass(bytes);
  Range fresh;
  uint64_t offset = 0;
  {
    std::scoped_lock lock(state.mutex);
    if (!state.gives_out) return nullptr;
    bool found = state.TakeFree(size_class, &offset);
    if (!found && state.Cut(size_class, &fresh, bytes)) found = state.TakeFree(size_class, &offset);
    // Out of fresh range: a free block of a slightly larger class is better than none.
    for (auto larger = state.free_lists.upper_bound(size_class);
         !found && larger != state.free_lists.end() && larger->first <= 2 * size_class; ++larger) {
      found = state.TakeFree(larger->first, &offset);
    }
    if (!found) return nullptr;
    Block& block = state.blocks.at(offset);
    block.live = true;
    block.asked = bytes;
    const uint64_t resident =
        std::max(block.resident, std::min(RoundUp(bytes, kPage), block.size_class));
    state.touched += resident - block.resident;
    block.resident = resident;
    state.in_use += bytes;
    ++state.allocations;
  }
  state.Populate(fresh);
  return state.base + offset;
}

void Arena::Free(void* pointer) {
  State& state = *state_;
  if (pointer == nullptr || !state.owner.Here()) return;
  std::scoped_lock lock(state.mutex);
  const uint64_t offset = OffsetOf(pointer);
  const auto found = state.blocks.find(offset);
  assert(found != state.blocks.end() && found->second.live);
  if (found == state.blocks.end() || !found->second.live) return;
  Block& block = found->second;
  block.live = false;
  block.freed_at = state.trims;
  state.in_use -= block.asked;
  if (!state.closed) return state.free_lists[block.size_class].push_back(offset);
  if (block.size_class >= kPage && state.Punch(offset, block.size_class))
    state.touched -= block.resident;
  state.blocks.erase(found);
  state.LeaveIfEmpty();
}

bool Arena::Contains(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto begin = reinterpret_cast<uintptr_t>(state_->base);
  return address >= begin && address - begin < state_->bytes;
}

// Only an arena that is closed has no bytes.
bool Arena::Over() const { return state_->bytes == 0; }

uint64_t Arena::OffsetOf(const void* pointer) const {
  return static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - state_->base);
}

void Arena::Trim() {
  State& state = *state_;
  if (!state.owner.Here()) return;
  // Punching takes long: meanwhile these blocks are on no list, so that no thread gets one.
  std::vector<std::pair<uint64_t, uint64_t>> cold;
  {
    std::scoped_lock lock(state.mutex);
    ++state.trims;
    for (auto& [size_class, list] : state.free_lists) {
      if (size_class < kPage) continue;
      std::erase_if(list, [&](uint64_t offset) {
        const Block& block = state.blocks.at(offset);
        if (block.resident == 0 || block.freed_at + 2 > state.trims) return false;
        cold.emplace_back(offset, block.size_class);
        return true;
      });
    }
  }
  std::vector<bool> returned;
  returned.reserve(cold.size());
  for (const auto& [offset, size] : cold) returned.push_back(state.Punch(offset, size));
  std::scoped_lock lock(state.mutex);
  for (size_t index = 0; index < cold.size(); ++index) {
    const auto& [offset, size] = cold[index];
    std::vector<uint64_t>& list = state.free_lists[size];
    list.insert(list.begin(), offset);  // the coldest: warm blocks go first
    if (!returned[index]) continue;
    Block& block = state.blocks.at(offset);
    state.touched -= block.resident;
    block.resident = 0;
  }
}

ArenaStats Arena::stats() const {
  const State& state = *state_;
  if (!state.owner.Here()) return {};
  std::scoped_lock lock(state.mutex);
  return {state.allocations, state.in_use, state.touched};
}

void Arena::StopAllocating() {
  State& state = *state_;
  if (!state.owner.Here()) return;
  std::scoped_lock lock(state.mutex);
  state.gives_out = false;
}

// Free blocks stay as they are: a peer may still read one through its own mapping.
uint64_t Arena::Close() {
  State& state = *state_;
  if (!state.owner.Here()) return state.bytes;
  std::scoped_lock lock(state.mutex);
  if (state.closed) return state.bytes;
  state.gives_out = false;
  state.closed = true;
  state.free_lists.clear();
  uint64_t end = 0;
  std::unordered_map<uint64_t, Block> live;
  for (const auto& [offset, block] : state.blocks) {
    if (!block.live) continue;
    end = std::max(end, RoundUp(offset + block.size_class, kPage));
    live.emplace(offset, block);
  }
  state.blocks.swap(live);
  state.next = end;
  state.bytes = end;
  return end;
}

void Arena::Own(Segment ground) {
  State& state = *state_;
  if (!state.owner.Here()) {  // a forked child gives nothing back
    state.ground = std::move(ground);
    return;
  }
  ground.KeepOnly(Close());
  std::scoped_lock lock(state.mutex);
  state.ground = std::move(ground);
  state.LeaveIfEmpty();
}

// A process may have many such arenas, one for each init: only this object stays.
void Arena::State::LeaveIfEmpty() {
  if (!ground || !blocks.empty()) return;
  bytes = 0;
  next = 0;
  ground = Segment();
  owner.Drop();
}

void Arena::BeforeFork() {
  State& state = *state_;
  if (!state.owner.Here()) return;
  state.mutex.lock();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return;  // the parent does not wait, and the child gets nothing
  state.snapshot_wait = Fd(ends[0]);
  state.snapshot_done = Fd(ends[1]);
}

void Arena::AfterForkInParent() {
  State& state = *state_;
  if (!state.owner.Here()) return;
  state.snapshot_done = Fd();
  if (state.snapshot_wait) {
    // Readable when the child closed its end: with its snapshot made, or by its death.
    const int64_t deadline = NowNs() + kSnapshotWaitMs * kMillisecond;
    pollfd wait{state.snapshot_wait.get(), POLLIN, 0};
    while (NowNs() < deadline) {
      const int64_t left = std::max<int64_t>(1, (deadline - NowNs()) / kMillisecond);
      if (::poll(&wait, 1, static_cast<int>(left)) >= 0) break;  // < 0: a signal came
    }
    state.snapshot_wait = Fd();
  }
  state.mutex.unlock();
}

void Arena::AfterForkInChild() {
  State& state = *state_;
  state.owner.Clear();
  state.snapshot_wait = Fd();
  // Private, same addresses. A page that the child has not written to would still show the parent's
  // writes; so it writes to the pages of live blocks while the parent waits.
  const uint64_t cut = RoundUp(state.next, kPage);
  if (cut > 0 && state.fd >= 0 &&
      ::mmap(state.base, cut, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             state.fd, static_cast<off_t>(state.fd_offset)) != MAP_FAILED) {
    for (const auto& [offset, block] : state.blocks) {
      if (!block.live) continue;
      const uint64_t end = offset + std::min(block.resident, block.size_class);
      for (uint64_t at = offset / kPage * kPage; at < end; at += kPage) {
        auto* word = reinterpret_cast<std::atomic<uint8_t>*>(state.base + at);
        word->store(word->load(std::memory_order_relaxed), std::memory_order_relaxed);
      }
    }
  }
  // A parent that does not wait, or not any longer, may have written meanwhile: the child must not
  // compute with that.
  pollfd parent{state.snapshot_done.get(), POLLOUT, 0};
  const bool torn =
      !state.snapshot_done || (::poll(&parent, 1, 0) > 0 && (parent.revents & POLLERR) != 0);
  if (torn && cut > 0) (void)::mprotect(state.base, cut, PROT_NONE);
  state.snapshot_done = Fd();
  state.mutex.unlock();
}

}  // namespace horoacc
