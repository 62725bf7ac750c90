#include "negotiate/control_segment/segment_lock.h"

#include <sched.h>

#include <string>

#include "base/clock.h"
#include "base/pause.h"
#include "negotiate/control_segment/segment_lock_rules.h"

namespace horoacc {
namespace {

using segment_lock::Turn;

constexpr int64_t kLookEvery = 20 * kMillisecond;

}  // namespace

SegmentGuard::SegmentGuard(const ControlSegment& control, SegmentLock& lock, uint32_t me,
                           const LockWatch& watch)
    : control_(control), lock_(lock), me_(me) {
  const auto has_aborted = [&] { return control.has_aborted(); };
  int64_t next_look = 0;
  for (uint64_t attempt = 0;; ++attempt) {
    Turn turn = segment_lock::Try(lock.owner, me);
    if (turn == Turn::kWait && attempt < 64) {
      Pause();
      continue;
    }
    uint32_t dead = 0;
    if (turn == Turn::kWait) {
      // The owner may have lost its core: give ours away rather than wait for it here.
      sched_yield();
      if (attempt % 64 != 0) continue;
      const int64_t now = NowNs();
      if (next_look == 0) next_look = now + kLookEvery;
      if (now < next_look) continue;
      next_look = now + kLookEvery;
      if (watch.look) watch.look();
      turn = segment_lock::LookAround(lock.owner, has_aborted, watch.alive, &dead);
    }
    switch (turn) {
      case Turn::kWait:
        continue;
      case Turn::kTaken:
        return;
      case Turn::kAborted:
        status_ = control.aborted();
        return;
      case Turn::kOwnerDied:
        const int rank = control.rank_of(dead);
        status_ =
            MakeError(ErrorKind::kPeerLost,
                      "rank " + std::to_string(rank) + " died while it held the set's lock", rank);
        return;
    }
  }
}

SegmentGuard::~SegmentGuard() {
  if (!status_.ok()) return;
  segment_lock::GiveBack(lock_.owner, std::uncaught_exceptions() > uncaught_, [this] {
    const int rank = control_.rank_of(me_);
    control_.Abort(MakeError(
        ErrorKind::kSystem,
        "rank " + std::to_string(rank) + " cannot go on: its engine failed with an exception",
        rank));
  });
}

}  // namespace horoacc
