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
/// private to the process, so a peer's crash cannot corrupt it. Blocks are 64-byte aligned, from
/// a page on page-aligned; freed blocks are reused last-in first-out within their size class at
/// once; Trim() gives pages of free blocks back.
///
/// Forks: the three fork calls go into the handlers of pthread_atfork (or os.register_at_fork),
/// which belong to the binding, because a handler is process-wide state. After them the child
/// has its own snapshot of the live blocks at the same addresses, private to it, and can no longer
/// allocate. A child of which the handlers did not run is recognised too (a page that the kernel
/// wipes on fork): it does not allocate either, but its writes would still reach the parent.
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
  /// It is closed, and none of its blocks is live: it contains nothing, now and for good.
  [[nodiscard]] bool Over() const;
  /// Offset of `pointer` from the base.
  [[nodiscard]] uint64_t OffsetOf(const void* pointer) const;
  /// Returns the pages of blocks that were free at the previous Trim already and were not used
  /// since: call it now and then, and what a step reuses every time stays.
  void Trim();
  [[nodiscard]] ArenaStats stats() const;
  /// Gives out no more blocks. Returns where the last live one ends, in whole pages (0: none is
  /// live): nobody needs the memory behind it any more, and the arena's range ends there. Blocks of
  /// whole pages that are freed from now on go back to the system at once.
  [[nodiscard]] uint64_t Close();
  /// Closes it, and takes over what it lies in (fully at its base), for as long as a block is live.
  /// Whoever made it is gone: nobody but Free and Contains is called from now on.
  void Own(Segment ground);

  /// Before fork(): holds the arena still, so that the child inherits it whole.
  void BeforeFork();
  /// In the parent, after fork(), also after one that failed: waits until the child has its
  /// snapshot (or is gone, or ten seconds have passed), then lets the arena go on.
  void AfterForkInParent();
  /// In the child, after fork().
  void AfterForkInChild();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace horoacc
