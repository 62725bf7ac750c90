#include "runtime/engine/waits.h"

#include <sched.h>

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "base/pause.h"

namespace horoacc {
namespace {

constexpr int64_t kSayAgainEvery = 5 * kMillisecond;
constexpr int64_t kFirstLook = kMillisecond;  // what a caller drives before it counts as waiting
constexpr int64_t kSetsDiffer = 100 * kMillisecond;  // blocked so long before that is decided
constexpr int64_t kYields = 200 * kMicrosecond;      // for hosts that have answered so soon
constexpr int64_t kTurns = 600 * kMicrosecond;       // for ranks that share this one's core
constexpr int64_t kCoreTaken = kMillisecond;         // a yield so long: other work has the core
constexpr int64_t kLeavesCore = 20 * kMillisecond;   // then for so long
constexpr int64_t kPollIsWaiting = 5 * kMillisecond;

bool IsComplete(const Entry& entry) { return entry.complete.load(std::memory_order_acquire); }

// Tells the ranks of the host that a caller of this rank drives, and which call it waits for.
class DrivenMark {
 public:
  DrivenMark(Job& job, const Entry& entry)
      : job_(job), doorbell_(job.doorbells.doorbell(job.local_rank())) {
    job.counters.driven_waits.fetch_add(1, std::memory_order_relaxed);
    doorbell_.driven.store(1, std::memory_order_seq_cst);
    job.own_state().blocked_on.store(static_cast<uint64_t>(entry.process_set) << 32 | entry.id);
  }
  ~DrivenMark() {
    job_.own_state().blocked_on.store(kNotBlocked);
    doorbell_.driven.store(0, std::memory_order_seq_cst);
  }
  DrivenMark(const DrivenMark&) = delete;
  DrivenMark& operator=(const DrivenMark&) = delete;

 private:
  Job& job_;
  Doorbell& doorbell_;
};

}  // namespace

bool Waits::Poll(Entry& entry) {
  if (IsComplete(entry)) return true;
  if (Driver::Lock lock(driver_, Driver::Lock::Holder::kCaller, std::try_to_lock); lock.held()) {
    const Doorbell& doorbell = job_.doorbells.doorbell(job_.local_rank());
    const int64_t look_until = NowNs() + kFirstLook;
    do {
      lock.Saw(doorbell.count.load(std::memory_order_seq_cst));
    } while (!IsComplete(entry) && lock.Progress() && NowNs() < look_until);
  }
  if (IsComplete(entry)) return true;
  // A caller that polls again and again waits too.
  const int64_t now = NowNs();
  int64_t due = entry.next_blocked_ns.load(std::memory_order_relaxed);
  const int64_t first = entry.submitted_ns + kPollIsWaiting;
  if (now > std::max(due, first) &&
      entry.next_blocked_ns.compare_exchange_strong(due, now + kPollIsWaiting)) {
    SayBlocked(entry);
  }
  return IsComplete(entry);
}

Status Waits::Wait(Entry& entry, int64_t deadline_ns) {
  const auto take_join = [&entry] {
    if (JoinEntry* const join = AsJoin(&entry); join && join->over)
      join->over->taken.store(true, std::memory_order_relaxed);
  };
  // The callback of a complete call is on its way, and may be the caller.
  if (IsComplete(entry)) {
    take_join();
    return entry.outcome;
  }
  entry.waiters.fetch_add(1, std::memory_order_seq_cst);
  const int64_t began = NowNs();
  Status outcome = AwaitOutcome(entry, deadline_ns);
  const int64_t waited = NowNs() - began;
  job_.counters.waited_ns.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  job_.events.Waited(entry.flight, waited);
  entry.waiters.fetch_sub(1, std::memory_order_seq_cst);
  if (entry.complete.load(std::memory_order_seq_cst)) {
    take_join();
    if (const auto done = entry.TakeCallback()) done();
  }
  return outcome;
}

Status Waits::AwaitOutcome(Entry& entry, int64_t deadline_ns) {
  for (uint32_t turn = 0; !IsComplete(entry); ++turn) {
    const int64_t now = NowNs();
    if (now >= deadline_ns) {
      return MakeError(ErrorKind::kTimeout,
                       "tensor '" + entry.display_name + "' is not complete yet");
    }
    try {
      if (TryDrive(entry, now, deadline_ns)) continue;
      if (turn % 4 == 0) SayBlocked(entry);
    } catch (const std::exception& thrown) {
      (void)failure_.AbortThrown(thrown.what());  // the driver's next turn ends the call
    }
    const int64_t left = std::max<int64_t>(deadline_ns - NowNs(), 0);
    completion_.Await(entry, std::min(left, 5 * kMillisecond));
  }
  return entry.outcome;
}

bool Waits::TryDrive(Entry& entry, int64_t now, int64_t deadline_ns) {
  if (job_.stopping.load(std::memory_order_acquire)) return false;
  Driver::Lock lock(driver_, Driver::Lock::Holder::kCaller, std::try_to_lock);
  if (!lock.held()) return false;
  // A first look may find the result there already; only a caller that has to wait says so.
  const int64_t look_until = std::min(deadline_ns, now + kFirstLook);
  while (!IsComplete(entry) && lock.Progress() && NowNs() < look_until) {
  }
  if (!IsComplete(entry)) SayBlocked(entry);
  Drive(lock, entry, deadline_ns);
  return true;
}

void Waits::SayBlocked(Entry& entry) {
  for (const auto& set : sets_.Own()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::vector<uint32_t> in_flight;
    {
      std::lock_guard lock(set->queue.mutex);
      if (set->id == entry.process_set && !entry.waited_for) {
        entry.waited_for = true;
        ++set->queue.sync_round;
      }
      in_flight = set->queue.in_flight.ids();
    }
    if (const Status status = set->controller->Unblock(in_flight); !status.ok())
      failure_.Abort(status.error());
  }
}

bool Waits::Spin(Driver::Lock& lock, uint32_t seen, bool linked, bool woken) {
  const Doorbell& doorbell = job_.doorbells.doorbell(job_.local_rank());
  const auto rung = [&] { return doorbell.count.load(std::memory_order_relaxed) != seen; };
  const bool polls = lock->AwaitsLinks() || job_.gpu_polls.load(std::memory_order_relaxed) > 0;
  const int64_t began = NowNs();
  const bool may_yield = job_.settings.spin_microseconds < 0 && began >= leaves_core_until_;
  // A rank without a core of its own leaves its core to the leader, which rings it.
  const bool awaits_hosts =
      may_yield && linked && hosts_answer_soon_ && (polls || job_.spin_ns > 0);
  // Where ranks share cores, another rank needs this one, and may end the call in its turn.
  const bool shares_core = may_yield && woken && !linked && !polls && job_.spin_ns == 0;
  const int64_t until = began + (awaits_hosts ? kYields : shares_core ? kTurns : job_.spin_ns);
  int64_t next_look = began + kLinksEvery;
  for (int64_t now = began; now < until; now = NowNs()) {
    if (polls || linked || shares_core) {
      // Messages ring no doorbell, and neither does a GPU. And the rank that brings them may want
      // this core: another host's ranks were not counted.
      sched_yield();
      // A thread that spins uses up its share of a core that others need, and waits for the core
      // later.
      if (const int64_t back = NowNs(); back - now > kCoreTaken)
        leaves_core_until_ = back + kLeavesCore;
      if (rung()) return true;
      if (!polls && now < next_look) continue;
      next_look = now + kLinksEvery;
      if (lock.Progress()) return true;
      continue;
    }
    for (int pause = 0; pause < 32; ++pause) {
      Pause();
      if (rung()) return true;
    }
    // Other hosts may need this rank to pass news on.
    if (!job_.mux || now < next_look) continue;
    next_look = now + kLinksEvery;
    if (lock.Progress()) return true;
  }
  return false;
}

void Waits::Drive(Driver::Lock& lock, Entry& entry, int64_t deadline_ns) {
  const int me = job_.local_rank();
  const Doorbell& doorbell = job_.doorbells.doorbell(me);
  const DrivenMark mark(job_, entry);
  int64_t poll_sleep = kShortestPoll;
  int64_t next_sleep = 2 * kMillisecond;
  const int64_t began = NowNs();
  lock.DrivesSince(began);
  int64_t next_say = began + kSayAgainEvery;  // the caller has just said it
  int64_t now = began;
  bool woken = true;
  const auto look = [&] {
    const uint32_t seen = doorbell.count.load(std::memory_order_seq_cst);
    lock.Saw(seen);
    return seen;
  };
  for (uint32_t seen = look(); !IsComplete(entry) && !job_.stopping.load(std::memory_order_acquire);
       seen = look(), now = NowNs()) {
    // Steady traffic must keep no partial bucket waiting, and hide no deadline, death or stall.
    if (now >= next_say) {
      if (now >= deadline_ns) break;
      next_say = now + kSayAgainEvery;
      SayBlocked(entry);  // the plan may have put the tensor into a bucket since
      watches_.Look();
    }
    if (lock.Progress()) {
      poll_sleep = kShortestPoll;
      continue;
    }
    if (IsComplete(entry)) break;
    const int64_t start = NowNs();
    if (start >= deadline_ns) break;
    if (Spin(lock, seen, entry.linked, woken)) continue;
    int64_t sleep = std::min(deadline_ns - start, next_sleep);
    if (job_.must_poll || job_.gpu_polls.load(std::memory_order_relaxed) > 0) {
      sleep = std::min(sleep, poll_sleep);
      poll_sleep = std::min(2 * poll_sleep, kLongestPoll);
    }
    job_.doorbells.SleepAsWaiter(me, seen, sleep);
    watches_.Look();
    woken = doorbell.count.load(std::memory_order_seq_cst) != seen;
    if (woken) continue;
    const CollectiveEntry* const call = AsCollective(&entry);
    if (call && NowNs() - began >= kSetsDiffer) watches_.stalls.LookForOtherSet(*call);
    next_sleep = std::min(2 * next_sleep, kLongestSleep);
  }
  if (entry.linked) hosts_answer_soon_ = NowNs() - began < kYields;
}

}  // namespace horoacc
