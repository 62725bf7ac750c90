#include "negotiate/control_segment/segment_lock.h"

#include <sched.h>

#include <string>

#include "base/clock.h"
#include "base/pause.h"

namespace horoacc {
namespace {

constexpr int64_t kLookEvery = 20 * kMillisecond;

}  // namespace

SegmentGuard::SegmentGuard(const ControlSegment& control, SegmentLock& lock, uint32_t me,
                           const LockWatch& watch)
    : control_(control), lock_(lock), me_(me) {
  int64_t next_look = 0;
  for (uint64_t turn = 0;; ++turn) {
    uint32_t free = 0;
    if (lock.owner.compare_exchange_weak(free, me + 1, std::memory_order_acquire)) return;
    if (turn < 64) {
      Pause();
      continue;
    }
    // The owner may have lost its core: give ours away rather than wait for it here.
    sched_yield();
    if (turn % 64 != 0) continue;
    const int64_t now = NowNs();
    if (next_look == 0) next_look = now + kLookEvery;
    if (now < next_look) continue;
    next_look = now + kLookEvery;
    if (watch.look) watch.look();
    if (control.has_aborted()) {
      status_ = control.aborted();
      return;
    }
    if (const uint32_t holder = lock.owner.load(); holder != 0 && !watch.alive(holder - 1)) {
      const std::string rank = std::to_string(control.rank_of(holder - 1));
      status_ =
          MakeError(ErrorKind::kPeerLost, "rank " + rank + " died while it held the set's lock",
                    control.rank_of(holder - 1));
      return;
    }
  }
}

SegmentGuard::~SegmentGuard() {
  if (!status_.ok()) return;
  if (std::uncaught_exceptions() > uncaught_) {
    // What the lock protects may be half changed: no rank may decide by it.
    const int rank = control_.rank_of(me_);
    control_.Abort(MakeError(
        ErrorKind::kSystem,
        "rank " + std::to_string(rank) + " cannot go on: its engine failed with an exception",
        rank));
  }
  lock_.owner.store(0, std::memory_order_release);
}

}  // namespace horoacc
