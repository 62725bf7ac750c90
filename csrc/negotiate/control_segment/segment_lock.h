#pragma once
// Mutual exclusion between the ranks of a host, over a word of the control segment.
#include <cstdint>
#include <exception>
#include <functional>

#include "negotiate/control_segment/control_segment.h"

namespace horoacc {

/// What a rank asks for while it waits for a lock.
struct LockWatch {
  std::function<bool(uint32_t local_rank)> alive;  ///< whether the rank's process exists
  /// Shows that this rank lives, and aborts the job if another one has been silent for too long:
  /// the owner may be stopped. Empty: nothing.
  std::function<void()> look{};
};

/// Holds a lock. Not ok() if its owner died or the job was aborted meanwhile. In an exception it
/// aborts the job instead of being given back.
class SegmentGuard {
 public:
  /// `me`: this rank, by local rank.
  SegmentGuard(const ControlSegment& control, SegmentLock& lock, uint32_t me,
               const LockWatch& watch);
  ~SegmentGuard();
  SegmentGuard(const SegmentGuard&) = delete;
  SegmentGuard& operator=(const SegmentGuard&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const ControlSegment& control_;
  SegmentLock& lock_;
  const uint32_t me_;
  const int uncaught_ = std::uncaught_exceptions();
  Status status_;
};

}  // namespace horoacc
