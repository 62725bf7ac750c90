// Waiting: a caller drives the engine itself while it waits; the coordinator thread drives it for
// everybody else.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/pause.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kLongestSleep = 100 * kMillisecond;  // between looks at the peers' lives
constexpr int64_t kPendingSleep = 20 * kMillisecond;
constexpr int64_t kBucketTimeout = 100 * kMillisecond;
constexpr int64_t kSayAgainEvery = 5 * kMillisecond;
constexpr int64_t kFirstLook = kMillisecond;  // what a caller drives before it counts as waiting
constexpr int64_t kSetsDiffer = 100 * kMillisecond;  // blocked so long before that is decided
constexpr int64_t kPollIsWaiting = 5 * kMillisecond;
constexpr int64_t kTrimPeriod = 10 * kSecond;
constexpr int64_t kShortestPoll = 100 * kMicrosecond;
constexpr int64_t kLongestPoll = kMillisecond;
constexpr int64_t kShortDrive = kMillisecond;  // leaves the coordinator as it is

}  // namespace

std::optional<bool> Engine::Poll(uint64_t handle) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return std::nullopt;
  if (entry->complete.load(std::memory_order_acquire)) return true;
  if (driver_mutex_.try_lock()) {
    uint32_t seen = 0;
    const int64_t look_until = NowNs() + kFirstLook;
    do {
      seen = doorbells_.doorbell(share_.local_rank).count.load(std::memory_order_seq_cst);
    } while (!entry->complete.load(std::memory_order_acquire) && Progress() &&
             NowNs() < look_until);
    LeaveDriver(seen);
  }
  if (entry->complete.load(std::memory_order_acquire)) return true;
  // Who asks again and again waits too.
  const int64_t now = NowNs();
  int64_t due = entry->next_blocked_ns.load(std::memory_order_relaxed);
  const int64_t first = entry->submitted_ns + kPollIsWaiting;
  if (now > std::max(due, first) &&
      entry->next_blocked_ns.compare_exchange_strong(due, now + kPollIsWaiting)) {
    SayBlocked(*entry);
  }
  return entry->complete.load(std::memory_order_acquire);
}

Status Engine::Wait(uint64_t handle, int64_t deadline_ns) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return MakeError(ErrorKind::kInvalid, "unknown handle " + std::to_string(handle));
  // Of what is complete the callback is on its way, and may be what is asking.
  if (entry->complete.load(std::memory_order_acquire)) {
    if (entry->join_over) entry->join_over->taken.store(true, std::memory_order_relaxed);
    return entry->outcome;
  }
  entry->waiters.fetch_add(1, std::memory_order_seq_cst);
  Status outcome = AwaitEntry(*entry, deadline_ns);
  entry->waiters.fetch_sub(1, std::memory_order_seq_cst);
  if (entry->complete.load(std::memory_order_seq_cst)) {
    if (entry->join_over) entry->join_over->taken.store(true, std::memory_order_relaxed);
    if (const auto done = entry->TakeCallback()) done();
  }
  return outcome;
}

Status Engine::AwaitEntry(Entry& entry, int64_t deadline_ns) {
  for (uint32_t turn = 0; !entry.complete.load(std::memory_order_acquire); ++turn) {
    const int64_t now = NowNs();
    if (now >= deadline_ns) {
      return MakeError(ErrorKind::kTimeout,
                       "tensor '" + entry.display_name + "' is not complete yet");
    }
    if (!stopping_.load(std::memory_order_acquire) && driver_mutex_.try_lock()) {
      // A first look may find the result there already; only a caller that has to wait says so.
      const int64_t look_until = std::min(deadline_ns, now + kFirstLook);
      while (!entry.complete.load(std::memory_order_acquire) && Progress() &&
             NowNs() < look_until) {
      }
      if (!entry.complete.load(std::memory_order_acquire)) SayBlocked(entry);
      LeaveDriver(DriveUntil(entry, deadline_ns));
      continue;
    }
    if (turn % 4 == 0) SayBlocked(entry);
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = completed_.load(std::memory_order_seq_cst);
    if (!entry.complete.load(std::memory_order_acquire)) {
      const int64_t left = std::max<int64_t>(deadline_ns - NowNs(), 0);
      FutexWait(completed_, seen, std::min(left, 5 * kMillisecond));
    }
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }
  return entry.outcome;
}

// A caller needs `entry` before it goes on: buckets of which this rank has submitted only a part,
// in whatever set, must not wait for the rest.
void Engine::SayBlocked(Entry& entry) {
  for (const auto& set : Sets()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::vector<uint32_t> in_flight;
    {
      std::lock_guard lock(set->queue.mutex);
      if (set->id == entry.process_set && !entry.waited_for) {
        entry.waited_for = true;
        ++set->queue.pause;
      }
      in_flight = set->queue.in_flight.ids();
    }
    if (Status status = set->controller->Unblock(in_flight); !status.ok()) Abort(status.error());
  }
}

// Frameworks whose threads never wait here (graphs with callbacks) cannot say that they are
// blocked: after a while without any decision a partial bucket with callbacks is taken for stuck.
void Engine::UnblockCallbacks() {
  for (const auto& set : Sets()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::vector<uint32_t> in_flight;
    {
      std::lock_guard lock(set->queue.mutex);
      in_flight = set->queue.in_flight.ids();
      const auto has_callback = [&](uint32_t id) {
        return set->queue.in_flight.Find(id)->done != nullptr;
      };
      if (std::ranges::none_of(in_flight, has_callback)) continue;
    }
    if (Status status = set->controller->Unblock(in_flight); !status.ok()) Abort(status.error());
  }
}

// Holds the driver's lock. Returns when the entry is complete or the deadline has come; the value
// is the doorbell's count before the last look at everything.
uint32_t Engine::DriveUntil(Entry& entry, int64_t deadline_ns) {
  const int me = share_.local_rank;
  Doorbell& doorbell = doorbells_.doorbell(me);
  counters_.driven_waits.fetch_add(1, std::memory_order_relaxed);
  doorbell.driven.store(1, std::memory_order_seq_cst);
  control_.state(me).blocked_on.store(static_cast<uint64_t>(entry.process_set) << 32 | entry.id);
  int64_t poll_sleep = kShortestPoll;
  int64_t next_sleep = 2 * kMillisecond;
  const int64_t began = driven_since_ns_ = NowNs();
  int64_t next_say = began + kSayAgainEvery;  // the caller has just said it
  int64_t now = began;
  const auto complete = [&] { return entry.complete.load(std::memory_order_acquire); };
  uint32_t seen = doorbell.count.load(std::memory_order_seq_cst);
  for (; !complete() && !stopping_.load(std::memory_order_acquire);
       seen = doorbell.count.load(std::memory_order_seq_cst), now = NowNs()) {
    // Whatever goes on: steady traffic must keep no partial bucket waiting, and hide no deadline,
    // death or stall.
    if (now >= next_say) {
      if (now >= deadline_ns) break;
      next_say = now + kSayAgainEvery;
      SayBlocked(entry);  // the plan may have put the tensor into a bucket since
      WatchPeers();
      WatchStalls();
      WatchDeadlines();
    }
    if (Progress()) {
      poll_sleep = kShortestPoll;
      continue;
    }
    if (complete()) break;
    const int64_t start = NowNs();
    if (start >= deadline_ns) break;
    bool rung = false;
    for (int64_t spun = start; !rung && spun - start < spin_ns_; spun = NowNs()) {
      if (mux_ || arriving_.load(std::memory_order_relaxed) > 0) {
        // Messages ring no doorbell, and neither does a GPU. And whoever brings them may want this
        // core: another host's ranks were not counted.
        sched_yield();
        rung = doorbell.count.load(std::memory_order_relaxed) != seen || Progress();
        continue;
      }
      for (int turn = 0; turn < 32 && !rung; ++turn) {
        Pause();
        rung = doorbell.count.load(std::memory_order_relaxed) != seen;
      }
    }
    if (rung) continue;
    int64_t sleep = std::min(deadline_ns - start, next_sleep);
    if (must_poll_ || arriving_.load(std::memory_order_relaxed) > 0) {
      sleep = std::min(sleep, poll_sleep);
      poll_sleep = std::min(2 * poll_sleep, kLongestPoll);
    }
    doorbells_.SleepAsWaiter(me, seen, sleep);
    WatchPeers();
    WatchStalls();
    WatchDeadlines();
    if (doorbell.count.load(std::memory_order_seq_cst) != seen) continue;
    if (NowNs() - began >= kSetsDiffer) WatchProcessSets(entry);
    next_sleep = std::min(2 * next_sleep, kLongestSleep);
  }
  control_.state(me).blocked_on.store(kNotBlocked);
  doorbell.driven.store(0, std::memory_order_seq_cst);
  return seen;
}

// Gives the driver's lock back and makes sure that nothing is left without a driver: while this
// thread drove, rings did not wake the coordinator.
void Engine::LeaveDriver(uint32_t seen) {
  const bool work_left = WorkLeft();
  // Who calls again and again wakes nobody in between: see Coordinate.
  const int64_t since = std::exchange(driven_since_ns_, 0);
  const bool was_long = since != 0 && NowNs() - since >= kShortDrive;
  driver_mutex_.unlock();
  if (waiting_.load(std::memory_order_seq_cst) > 0) {
    completed_.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(completed_);
  }
  const bool rung =
      doorbells_.doorbell(share_.local_rank).count.load(std::memory_order_seq_cst) != seen;
  if (work_left || (rung && AnythingPending()) ||
      (was_long && doorbells_.CoordinatorIsDeaf(share_.local_rank))) {
    doorbells_.WakeCoordinator(share_.local_rank);
  }
}

// Holds the driver's lock. Something goes on that no call waits for.
bool Engine::WorkLeft() {
  if (mux_ && mux_->HasUnsent()) return true;
  if (multi_host_ && multi_host_->HasUnsent()) return true;
  if (messages_->pending()) return true;
  return std::ranges::any_of(DrivenSets(), [](const auto& set) {
    return set->current || !set->draining.empty() || set->queue.removed.load();
  });
}

bool Engine::AnythingPending() const {
  if (messages_->pending()) return true;
  for (const auto& set : Sets()) {
    if (set->queue.pending.load(std::memory_order_relaxed) > 0) return true;
    if (set->controller->HoldsNews()) return true;
  }
  return false;
}

void Engine::Coordinate(const std::stop_token& stop) {
  const int me = share_.local_rank;
  Doorbell& doorbell = doorbells_.doorbell(me);
  int64_t poll_sleep = kShortestPoll;
  int64_t quiet_since = NowNs();
  int64_t next_trim = quiet_since + kTrimPeriod;
  uint64_t decisions_seen = 0;
  uint64_t drives_seen = 0;
  int64_t deaf_sleep = kShortDrive;
  while (!stop.stop_requested()) {
    const uint32_t seen = doorbell.coordinator_word.load(std::memory_order_seq_cst);
    Beat();
    AnswerForStack();
    if (stacks_.WasAsked()) RecordFlight("a signal asked for it", true);
    bool running = false;
    bool more = false;  // to drive, after a look at the peers
    bool others_drive = doorbell.driven.load(std::memory_order_seq_cst) != 0;
    if (!others_drive) others_drive = !driver_mutex_.try_lock();
    if (!others_drive) {
      const int64_t drive_until = NowNs() + kPendingSleep;
      while (!stop.stop_requested() && doorbell.driven.load() == 0 && Progress()) {
        poll_sleep = kShortestPoll;
        more = NowNs() >= drive_until;
        if (more) break;
      }
      running = WorkLeft();
      driver_mutex_.unlock();
      if (waiting_.load(std::memory_order_seq_cst) > 0) {
        completed_.fetch_add(1, std::memory_order_seq_cst);
        FutexWakeAll(completed_);
      }
    }
    if (stop.stop_requested()) break;
    // Now that what woke this thread has been read: it may be a sign of life.
    WatchPeers();
    WatchStalls();
    WatchDeadlines();
    const int64_t now = NowNs();
    if (now >= next_trim) {
      next_trim = now + kTrimPeriod;
      arena_->Trim();
      EmptyQuarantine();
    }
    const bool pending = running || AnythingPending();
    if (const uint64_t decisions = counters_.decisions.load(std::memory_order_relaxed);
        !pending || decisions != decisions_seen) {
      decisions_seen = decisions;
      quiet_since = now;
    } else if (now - quiet_since > kBucketTimeout) {
      quiet_since = now;
      UnblockCallbacks();
    }
    int64_t sleep = pending                                     ? kPendingSleep
                    : doubtful_.load(std::memory_order_relaxed) ? kLongestSleep
                                                                : UntilBeat(now);
    if ((must_poll_ && pending) || arriving_.load(std::memory_order_relaxed) > 0) {
      sleep = poll_sleep;
      poll_sleep = std::min(2 * poll_sleep, kLongestPoll);
    }
    // Callers that drive read the links themselves, and who has just driven is likely to do so
    // again: until a short while has passed without it, what comes over the links does not wake
    // this thread. After an abort nobody empties the links: what comes over them must wake nobody.
    const uint64_t drives = counters_.driven_waits.load(std::memory_order_relaxed);
    const bool drove = mux_ && std::exchange(drives_seen, drives) != drives;
    const bool aborted = control_.aborted().kind != ErrorKind::kOk;
    const bool with_links =
        !drove && !others_drive && !aborted && doorbell.driven.load(std::memory_order_seq_cst) == 0;
    if (with_links || drove) deaf_sleep = kShortDrive;
    if (mux_ && !with_links && !aborted) {
      sleep = std::min(sleep, deaf_sleep);
      deaf_sleep = std::min(2 * deaf_sleep, kPendingSleep);
    }
    if (!more) doorbells_.SleepAsCoordinator(me, seen, sleep, with_links);
    counters_.coordinator_wakes.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace horoacc
