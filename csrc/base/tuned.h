#pragma once
// Settings that may change while the job runs.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "base/settings.h"

namespace horoacc {

/// A rank may see a change earlier or later than another: nothing that ranks must do alike follows
/// from these values but by a decision, which names its path, or by the agreement on a plan, whose
/// proposal names them. Any thread.
class Tuned {
 public:
  explicit Tuned(const Settings& settings)
      : fusion_threshold_(settings.fusion_threshold),
        last_arriver_bytes_(settings.last_arriver_bytes) {}

  /// Bytes of a bucket of a locked plan.
  [[nodiscard]] uint64_t fusion_threshold() const {
    return fusion_threshold_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t last_arriver_bytes() const {
    return last_arriver_bytes_.load(std::memory_order_relaxed);
  }
  /// How often they have changed.
  [[nodiscard]] uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  /// The trials so far and the reasons for the values, for `explain`; JSON, or empty.
  [[nodiscard]] std::string story() const {
    const std::lock_guard lock(mutex_);
    return story_;
  }

  /// True if a value is another one now.
  bool Change(uint64_t fusion_threshold, uint64_t last_arriver_bytes, std::string story) {
    const std::lock_guard lock(mutex_);
    story_ = std::move(story);
    const bool same =
        fusion_threshold == fusion_threshold_ && last_arriver_bytes == last_arriver_bytes_;
    if (same) return false;
    fusion_threshold_.store(fusion_threshold, std::memory_order_relaxed);
    last_arriver_bytes_.store(last_arriver_bytes, std::memory_order_relaxed);
    changes_.fetch_add(1, std::memory_order_release);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  std::string story_;
  std::atomic<uint64_t> fusion_threshold_;
  std::atomic<uint64_t> last_arriver_bytes_;
  std::atomic<uint64_t> changes_{0};
};

}  // namespace horoacc
