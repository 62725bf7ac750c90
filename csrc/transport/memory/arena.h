#pragma once
// Memory for tensors inside a rank's own segment, where the peers of the host can see it.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "transport/memory/segment.h"

namespace horoacc {

struct ArenaStats {
  uint64_t allocations = 0;    ///< calls of Allocate that gave a block, ever
  uint64_t bytes_in_use = 0;   ///< as asked for, in live blocks
  uint64_t bytes_touched = 0;  ///< pages that cost memory now
};

/// An allocator over [base, base+bytes) of a sparse segment. Thread-safe. Its bookkeeping is
/// private to the process, so a peer's crash cannot corrupt it. Blocks are 64-byte aligned, from a
/// page on page-aligned; freed blocks are reused last-in first-out within their size class; Trim()
/// returns pages of free blocks.
///
/// Forks: the three fork calls go into the handlers of pthread_atfork (or os.register_at_fork),
/// which belong to the binding, because a handler is process-wide state. After them the child has a
/// private snapshot of the live blocks at the same addresses, and can no longer allocate. Without
/// the handlers a child is recognised too (a page that the kernel wipes on fork): it cannot
/// allocate either, but its writes still reach the parent.
class Arena {
 public:
  /// `fd` at `fd_offset` is what is mapped at `base`; both are page-aligned.
  Arena(std::byte* base, size_t bytes, int fd, size_t fd_offset);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns nullptr if the range is exhausted, or in a forked child.
  [[nodiscard]] void* Allocate(size_t bytes);
  /// `pointer` must come from Allocate. In a forked child: does nothing.
  void Free(void* pointer);
  [[nodiscard]] bool Contains(const void* pointer) const;
  /// Whether it is closed and has no live block: it contains nothing, for good.
  [[nodiscard]] bool Over() const;
  /// Offset of `pointer` from the base.
  [[nodiscard]] uint64_t OffsetOf(const void* pointer) const;
  /// Returns the pages of blocks that have been free since before the previous Trim. Called now and
  /// then, it keeps the blocks that every step reuses.
  void Trim();
  [[nodiscard]] ArenaStats stats() const;
  /// Allocate returns nullptr from now on.
  void StopAllocating();
  /// Gives out no more blocks. Returns where the last live block ends, in whole pages (0: none is
  /// live), which is the new end of the arena's range: the memory behind it may be unmapped. Pages
  /// of blocks that are freed from now on return to the system at once.
  [[nodiscard]] uint64_t Close();
  /// Closes it, and keeps the segment that it lies in (at its base) for as long as a block is live.
  /// From now on only Free and Contains are called.
  void Own(Segment ground);

  /// Before fork(): locks the arena, so that the child inherits a consistent one.
  void BeforeFork();
  /// In the parent, after fork(), also after one that failed: waits until the child has its
  /// snapshot (or is dead, or ten seconds have passed), then unlocks the arena.
  void AfterForkInParent();
  /// In the child, after fork(). If the parent went on before the snapshot was made, the blocks
  /// cannot be read there.
  void AfterForkInChild();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace horoacc
