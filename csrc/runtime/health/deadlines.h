#pragma once
// Calls whose time is over.
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/job/failure.h"
#include "runtime/sets/set_table.h"
#include "runtime/trace/telemetry.h"

namespace horoacc {

/// Any thread.
class Deadlines {
 public:
  using GivenUp = std::vector<std::pair<std::shared_ptr<Entry>, Error>>;

  Deadlines(Job& job, Failure& failure, SetTable& sets, Telemetry& telemetry)
      : job_(job), failure_(failure), sets_(sets), telemetry_(telemetry) {}

  /// Gives up the calls whose own limit is over, and has the driver end refusals that are moot.
  void Look();
  /// The caller waits for a call no longer than `seconds`, which are over. The driver ends the
  /// call, and its process set on all ranks. Returns the error that the caller gets.
  Error GiveUp(const std::shared_ptr<Entry>& entry, double seconds);
  /// Says whom a call waits for.
  [[nodiscard]] Error TooLate(const Entry& entry, double seconds) const;
  /// The calls to end since the last time, and what to end them with. The driver's.
  [[nodiscard]] GivenUp Take() {
    return any_.load(std::memory_order_acquire) ? TakeAll() : GivenUp();
  }

 private:
  void HandToDriver(const std::shared_ptr<Entry>& entry, const Error& error);
  GivenUp TakeAll();

  Job& job_;
  Failure& failure_;
  SetTable& sets_;
  Telemetry& telemetry_;
  std::mutex mutex_;
  GivenUp given_up_;
  std::atomic<bool> any_{false};
};

}  // namespace horoacc
