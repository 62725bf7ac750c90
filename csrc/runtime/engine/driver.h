#pragma once
// The only loop: takes decisions in the order of the log, runs them, completes their calls. One
// thread at a time drives, whichever holds the lock: a caller that waits, or the coordinator.
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "runtime/engine/completion.h"
#include "runtime/engine/executions.h"
#include "runtime/health/deadlines.h"
#include "runtime/messages/message_calls.h"

namespace horoacc {

// Of every thread that waits: the sleep between looks at the peers' lives, at work that only polls
// complete, and the turn so short that it leaves the coordinator as it is.
inline constexpr int64_t kLongestSleep = 100 * kMillisecond;
inline constexpr int64_t kShortestPoll = 100 * kMicrosecond;
inline constexpr int64_t kLongestPoll = kMillisecond;
inline constexpr int64_t kShortDrive = kMillisecond;

/// Between looks at the links, if no call of this rank waits for them.
inline constexpr int64_t kLinksEvery = 100 * kMicrosecond;

class Driver {
 public:
  /// What the driver drives, and what it tells.
  struct Parts {
    Job& job;
    Failure& failure;
    SetTable& sets;
    DeviceCalls& devices;
    Completion& completion;
    MessageCalls& messages;
    Deadlines& deadlines;
    Telemetry& telemetry;
  };
  explicit Driver(Parts parts) : parts_(parts), job_(parts.job), executions_(job_, parts.devices) {}

  /// Holds the driver's lock. When it gives the lock back it makes sure that nothing is left
  /// without a thread that drives: while a caller drove, rings did not wake the coordinator.
  class Lock {
   public:
    enum class Holder { kCaller, kCoordinator };
    /// Waits for the lock.
    Lock(Driver& driver, Holder holder);
    /// Not held() if another thread drives.
    Lock(Driver& driver, Holder holder, std::try_to_lock_t);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    [[nodiscard]] bool held() const { return lock_.owns_lock(); }
    /// Moves everything that can be moved without waiting. False: nothing could. An exception
    /// aborts the job.
    bool Progress() { return driver_.ProgressOrAbort(); }
    /// The doorbell's count before the holder's last look at everything. A caller's; without it the
    /// coordinator is woken in any case.
    void Saw(uint32_t count) { seen_ = count; }
    /// The holder drives for as long as it waits, and not for a look.
    void DrivesSince(int64_t now_ns) { since_ns_ = now_ns; }
    [[nodiscard]] Driver* operator->() const { return &driver_; }

   private:
    Driver& driver_;
    const Holder holder_;
    std::unique_lock<std::mutex> lock_;
    std::optional<uint32_t> seen_;
    int64_t since_ns_ = 0;
  };

  // Under the lock.
  /// Something goes on that no call waits for.
  [[nodiscard]] bool WorkLeft();
  /// Something waits here for what links bring: each turn looks at them.
  [[nodiscard]] bool AwaitsLinks() const {
    return job_.led_calls.load(std::memory_order_relaxed) > 0 || AwaitsData();
  }
  /// Ends all calls with `error`; from now on this rank touches no memory of its peers.
  void FailAll(const Error& error);
  /// Progress does nothing any more: the engine is abandoned, or has given back what it stands on.
  void Release() { released_ = true; }

  /// Turns the loop once on the thread of a caller, or has the thread do so that drives.
  void LookOnce();
  /// Calls wait, or news of others wait to be sent on. Any thread.
  [[nodiscard]] bool AnythingPending() const;

 private:
  class Turn;

  bool ProgressOrAbort();
  bool Progress();
  [[nodiscard]] bool AwaitsData() const {
    return runs_between_hosts_ || job_.linked_messages.load(std::memory_order_relaxed) > 0 ||
           parts_.messages.exchange().HasUnposted();
  }
  Result<bool> ProgressLinks();
  Result<bool> ProgressSet(ProcessSet& set);
  Result<bool> AdvanceBeside(ProcessSet& set, Turn& turn);
  Status Begin(ProcessSet& set, Decision decision);
  Status Run(ProcessSet& set, std::unique_ptr<Running> running);
  Status Refuse(ProcessSet& set, std::unique_ptr<Running> running);
  Status EndJoin(ProcessSet& set, std::unique_ptr<Running> running);
  Status End(ProcessSet& set, std::unique_ptr<Running> running);
  Status Drain(ProcessSet& set, std::unique_ptr<Running> running);
  Status Drain(ProcessSet& set);
  void FailUndecided(ProcessSet& set, const Error& error);
  Status EndGivenUp();

  const Parts parts_;
  Job& job_;
  Executions executions_;
  std::mutex mutex_;
  bool ended_ = false;  ///< FailAll was called: messages have closed their links
  bool released_ = false;
  bool runs_between_hosts_ = false;  ///< after the last turn
  int64_t next_links_ns_ = 0;
};

}  // namespace horoacc
