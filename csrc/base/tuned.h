#pragma once
// Settings that may change while the job runs.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "base/settings.h"

namespace horoacc {

/// How an allreduce travels between hosts, beside what the job's settings say.
struct Way {
  uint32_t algorithm = 0;     ///< 1 + its place in schedule::Algorithms(); 0: as without it
  uint64_t window_bytes = 0;  ///< 0: as without it
  bool operator==(const Way&) const = default;
};

/// A rank may see a change earlier or later than another: nothing that ranks must do alike follows
/// from these values but by a decision, which names its path, or by the agreement on a plan, whose
/// proposal names them. Any thread.
class Tuned {
 public:
  struct Values {
    uint64_t fusion_threshold = 0;    ///< bytes of a bucket of a locked plan
    uint64_t last_arriver_bytes = 0;  ///< as the setting
    Way way;                          ///< of buckets of locked plans
    bool operator==(const Values&) const = default;
  };

  /// For those who look.
  struct Story {
    std::string text;     ///< what was tried and why the values hold; JSON, or empty
    uint64_t trials = 0;  ///< so far
    uint64_t kept = 0;    ///< of these
  };

  explicit Tuned(const Settings& settings)
      : values_{settings.fusion_threshold, settings.last_arriver_bytes, {}},
        last_arriver_bytes_(settings.last_arriver_bytes) {}

  [[nodiscard]] Values values() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  [[nodiscard]] uint64_t last_arriver_bytes() const {
    return last_arriver_bytes_.load(std::memory_order_relaxed);
  }
  /// How often they have changed.
  [[nodiscard]] uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  [[nodiscard]] Story story() const {
    const std::lock_guard lock(mutex_);
    return story_;
  }

  /// True if a value is another one now.
  bool Change(const Values& values, Story story) {
    const std::lock_guard lock(mutex_);
    story_ = std::move(story);
    if (values == values_) return false;
    values_ = values;
    last_arriver_bytes_.store(values.last_arriver_bytes, std::memory_order_relaxed);
    changes_.fetch_add(1, std::memory_order_release);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  Story story_;
  Values values_;
  std::atomic<uint64_t> last_arriver_bytes_;
  std::atomic<uint64_t> changes_{0};
};

}  // namespace horoacc
