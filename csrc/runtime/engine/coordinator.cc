#include "runtime/engine/coordinator.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kPendingSleep = 20 * kMillisecond;
constexpr int64_t kBucketTimeout = 100 * kMillisecond;
constexpr int64_t kTrimPeriod = 10 * kSecond;
constexpr int64_t kPlansPeriod = kSecond / 2;
constexpr std::chrono::milliseconds kAfterThrow(20);  // memory may be short for a while

}  // namespace

Status Coordinator::Start() {
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  } catch (const std::system_error& refused) {
    return MakeError(ErrorKind::kSystem, std::string("no engine thread: ") + refused.what());
  }
  return {};
}

void Coordinator::Stop() {
  thread_.request_stop();
  job_.WakeCoordinator();
  if (thread_.joinable()) thread_.join();
}

void Coordinator::Pin() const {
  pthread_setname_np(pthread_self(), "horoacc");
  if (job_.settings.thread_affinity.empty()) return;
  const int core = job_.settings.thread_affinity[job_.placement.local_rank];
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  const int refused = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  if (refused == 0) return;
  job_.log.Write(LogLevel::kWarning,
                 "setting 'thread_affinity': the engine thread cannot run on core " +
                     std::to_string(core) + ": " + std::generic_category().message(refused));
}

void Coordinator::Run(const std::stop_token& stop) {
  Pin();
  while (!stop.stop_requested()) {
    try {
      RunTurns(stop);
    } catch (const std::exception& thrown) {
      (void)parts_.failure.AbortThrown(thrown.what());
      std::this_thread::sleep_for(kAfterThrow);
    }
  }
}

void Coordinator::RunTurns(const std::stop_token& stop) {
  const int me = job_.local_rank();
  Doorbell& doorbell = job_.doorbells.doorbell(me);
  int64_t poll_sleep = kShortestPoll;
  int64_t quiet_since = NowNs();
  int64_t next_trim = quiet_since + kTrimPeriod;
  int64_t next_plans = quiet_since + kPlansPeriod;
  uint64_t decisions_seen = 0;
  uint64_t drives_seen = 0;
  int64_t deaf_sleep = kShortDrive;
  while (!stop.stop_requested()) {
    const uint32_t seen = doorbell.coordinator_word.load(std::memory_order_seq_cst);
    parts_.watches.liveness.Beat();
    parts_.stacks.Answer();
    if (job_.stacks.WasAsked()) parts_.telemetry.RecordFlight("a signal asked for it", true);
    bool running = false;
    bool more = false;  // to drive, after a look at the peers
    bool others_drive = doorbell.driven.load(std::memory_order_seq_cst) != 0;
    if (!others_drive) {
      Driver::Lock lock(parts_.driver, Driver::Lock::Holder::kCoordinator, std::try_to_lock);
      others_drive = !lock.held();
      const int64_t drive_until = NowNs() + kPendingSleep;
      while (lock.held() && !stop.stop_requested() && doorbell.driven.load() == 0 &&
             lock.Progress()) {
        poll_sleep = kShortestPoll;
        more = NowNs() >= drive_until;
        if (more) break;
      }
      running = lock.held() && lock->WorkLeft();
    }
    if (stop.stop_requested()) break;
    // Now that what woke this thread has been read: it may be a sign of life.
    parts_.watches.Look();
    const int64_t now = NowNs();
    if (now >= next_plans) {
      next_plans = now + kPlansPeriod;
      parts_.plans.LookAtOthers();
    }
    if (now >= next_trim) {
      next_trim = now + kTrimPeriod;
      job_.arena->Trim();
      job_.blocks.EmptyQuarantine();
    }
    const bool pending = running || parts_.driver.AnythingPending();
    if (const uint64_t decisions = job_.counters.decisions.load(std::memory_order_relaxed);
        !pending || decisions != decisions_seen) {
      decisions_seen = decisions;
      quiet_since = now;
    } else if (now - quiet_since > kBucketTimeout) {
      quiet_since = now;
      UnblockCallbacks();
    }
    int64_t sleep = pending                              ? kPendingSleep
                    : parts_.watches.liveness.doubtful() ? kLongestSleep
                                                         : parts_.watches.liveness.UntilBeat(now);
    if ((job_.must_poll && pending) || job_.gpu_polls.load(std::memory_order_relaxed) > 0) {
      sleep = poll_sleep;
      poll_sleep = std::min(2 * poll_sleep, kLongestPoll);
    }
    // Callers that drive read the links themselves, and a caller that has just driven is likely to
    // do so again: until a short while has passed without it, messages do not wake this thread.
    // After an abort no thread empties the links: messages must wake none.
    const uint64_t drives = job_.counters.driven_waits.load(std::memory_order_relaxed);
    const bool drove = job_.mux && std::exchange(drives_seen, drives) != drives;
    const bool aborted = job_.aborted();
    const bool with_links =
        !drove && !others_drive && !aborted && doorbell.driven.load(std::memory_order_seq_cst) == 0;
    if (with_links || drove) deaf_sleep = kShortDrive;
    if (job_.mux && !with_links && !aborted) {
      sleep = std::min(sleep, deaf_sleep);
      deaf_sleep = std::min(2 * deaf_sleep, kPendingSleep);
    }
    if (!more) job_.doorbells.SleepAsCoordinator(me, seen, sleep, with_links);
    job_.counters.coordinator_wakes.fetch_add(1, std::memory_order_relaxed);
  }
}

void Coordinator::UnblockCallbacks() {
  for (const auto& set : parts_.sets.Own()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::vector<uint32_t> in_flight;
    {
      const std::unique_lock lock(set->queue.mutex, std::try_to_lock);  // see StallWatch::Look
      if (!lock) continue;
      in_flight = set->queue.in_flight.ids();
      const auto has_callback = [&](uint32_t id) {
        return set->queue.in_flight.Find(id)->done != nullptr;
      };
      if (std::ranges::none_of(in_flight, has_callback)) continue;
    }
    if (const Status status = set->controller->Unblock(in_flight); !status.ok())
      parts_.failure.Abort(status.error());
  }
}

}  // namespace horoacc
