#pragma once
// The end of a call: its outcome, and the threads that wait for it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/engine/publisher.h"
#include "runtime/job/failure.h"

namespace horoacc {

class Completion {
 public:
  Completion(Job& job, Failure& failure) : job_(job), failure_(failure) {}

  // Under the driver's lock.
  /// All of them with the same outcome: those of a decision end together.
  void Complete(ProcessSet& set, std::span<const std::shared_ptr<CollectiveEntry>> entries,
                const Status& outcome);
  void Complete(ProcessSet& set, JoinEntry& entry, Status outcome);
  void Complete(MessageEntry& entry, Status outcome);

  /// Wakes the threads in Await: some call is complete, or nobody drives any more. Any thread.
  void WakeWaiters();
  /// Sleeps until WakeWaiters or for `timeout_ns`, unless `entry` is complete. Any thread.
  void Await(const Entry& entry, int64_t timeout_ns);

 private:
  Status Begin(const ProcessSet* set, Entry& entry, Status outcome);
  void RunCallback(Entry& entry);

  Job& job_;
  Failure& failure_;
  Publisher publisher_{job_};
  std::atomic<uint32_t> completed_{0};  ///< futex of callers that wait while another thread drives
  std::atomic<uint32_t> waiting_{0};
};

}  // namespace horoacc
