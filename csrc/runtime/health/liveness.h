#pragma once
// Which ranks are dead, stopped or cut off, and the signs of life that this rank gives. A rank that
// computes for minutes without a call gives them all the same: its coordinator thread does.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/health/heartbeat_monitor.h"
#include "runtime/job/failure.h"

namespace horoacc {

/// Any thread, unless said otherwise.
class Liveness {
 public:
  Liveness(Job& job, Failure& failure) : job_(job), failure_(failure) {}

  /// Puts this process and its epoch where the other ranks of the host find them.
  void Introduce();
  /// After a rendezvous before which all ranks have introduced themselves.
  [[nodiscard]] Status CheckEpochs() const;
  /// Looks for dead ranks, at most every 10 ms, and for silent ones, at most every 100 ms, and
  /// aborts the job if there is one.
  void Look();
  /// Gives a sign of life. The coordinator's.
  void Beat();
  /// How long a coordinator with nothing to do may sleep.
  [[nodiscard]] int64_t UntilBeat(int64_t now_ns) const;
  /// Some rank is later than it should be: look again soon.
  [[nodiscard]] bool doubtful() const { return doubtful_.load(std::memory_order_relaxed); }

 private:
  void WatchSilences(int64_t now_ns);  ///< under mutex_
  void TellSilence(HeartbeatMonitor::News news, int rank, const std::string& who,
                   int64_t silent_ns);
  /// How many collectives a rank of this host has begun, and this rank.
  [[nodiscard]] std::string HowFar(uint32_t local) const;

  Job& job_;
  Failure& failure_;
  std::atomic<int64_t> next_look_ns_{0};
  std::mutex mutex_;                              ///< one thread looks at a time
  int64_t next_listen_ns_ = 0;                    ///< under mutex_
  std::unique_ptr<HeartbeatMonitor> heartbeats_;  ///< of the host's ranks, then of all, by rank
  std::vector<int> watched_across_;               ///< at the latest look
  std::atomic<bool> doubtful_{false};
  int64_t next_beat_across_ns_ = 0;  ///< the coordinator's
};

}  // namespace horoacc
