#pragma once
// Jobs of which one rank fails somewhere: each rank ends in time, with right results or an error.
#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/process_jobs.h"

namespace horoacc::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::milliseconds kLate(20);  ///< all others have called by then
#else
constexpr std::chrono::milliseconds kLate(2);
#endif
constexpr int kWell = 0, kTold = 10;  ///< what a rank's body returns

/// The limits end jobs of a rank that has stopped or never comes, and no others beside other work.
inline Pairs SweepSettings(bool messages, const std::string& heartbeat_seconds) {
  Pairs settings = {{"log_level", "fatal"},
                    {"last_arriver_bytes", "0"},
                    {"heartbeat_timeout_seconds", heartbeat_seconds},
                    {"start_timeout_seconds", "10"}};
  if (messages) settings.emplace_back("simulated_hosts", "each");
  return settings;
}

/// Calls of one window and of several, whose results are checked; the first error. `late` comes
/// last, so that on one host it decides.
inline std::optional<ha_error> MakeCalls(ha_engine* engine, int rank, int size, int late) {
  constexpr int kSteps = 12;
  constexpr size_t kMany = 1 << 17;
  static std::vector<float> data(kMany);
  for (int step = 0; step < kSteps; ++step) {
    if (rank == late) std::this_thread::sleep_for(kLate);
    const size_t count = step % 2 ? kMany : 16;
    std::fill_n(data.begin(), count, static_cast<float>(rank + step));
    Call call(engine, step % 2 ? "many" : "few", data.data(), count);
    if (call.Wait() != HA_OK) return call.error();
    const int sum = size * (size - 1) / 2 + size * step;
    for (size_t k = 0; k < count; ++k) CHECK_EQ(data[k], static_cast<float>(sum));
  }
  return std::nullopt;
}

/// Keeps so many jobs running. `Running` is a job with Finish().
template <typename Running>
class JobsAtOnce {
 public:
  explicit JobsAtOnce(size_t most) : most_(most) {}

  void FinishAll() {
    for (Running& each : running_) each.Finish();
    running_.clear();
  }
  template <typename... Parts>
  void Start(const Parts&... parts) {
    if (running_.size() == most_) {
      running_.front().Finish();
      running_.pop_front();
    }
    running_.emplace_back(parts...);
  }

 private:
  const size_t most_;
  std::list<Running> running_;
};

}  // namespace horoacc::testing
