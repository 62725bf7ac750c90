#pragma once
// A rank's ring of staging places: private input is copied in window by window, so that the place
// it is copied to is still in the cache when the peers read it.
#include <cstdint>
#include <limits>

#include "execute/execution.h"

namespace horoacc {

inline constexpr uint64_t kNoStaging = std::numeric_limits<uint64_t>::max();

/// Owns this rank's staging for one execution and moves its counters in the slot.
class WindowRing {
 public:
  /// `stages`: this rank has private input to show. All ranks give the same number of windows.
  WindowRing(const SetContext& context, ExecSlot& slot, uint64_t windows, bool stages);
  ~WindowRing();
  WindowRing(const WindowRing&) = delete;
  WindowRing& operator=(const WindowRing&) = delete;

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] uint64_t exposed() const { return exposed_; }
  [[nodiscard]] uint64_t consumed() const { return consumed_; }
  [[nodiscard]] uint64_t windows() const { return windows_; }

  /// May window exposed() be copied in? Its place is free once every rank consumed what was there.
  [[nodiscard]] bool MayExpose() const;
  /// The place of window exposed() of this rank.
  [[nodiscard]] std::byte* OwnPlace() const {
    return own_ + (exposed_ % depth_) * context_.window_bytes;
  }
  void Expose();
  /// Have all ranks that take part exposed `window`?
  [[nodiscard]] bool AllExposed(uint64_t window) const;
  /// What rank `index` shows of `window`: zeros, if it takes no part.
  [[nodiscard]] const std::byte* Source(uint32_t index, uint64_t window) const {
    return context_.IsPresent(index) ? Place(index, window) : context_.zeros.get();
  }
  /// Where rank `index` put `window` (only once that rank has exposed it).
  [[nodiscard]] std::byte* Place(uint32_t index, uint64_t window) const;
  void Consume();
  [[nodiscard]] bool AllConsumed() const { return LeastConsumed() >= windows_; }

 private:
  [[nodiscard]] uint64_t LeastConsumed() const;

  const SetContext& context_;
  ExecSlot& slot_;
  const uint64_t windows_;
  const uint64_t depth_;
  std::byte* own_ = nullptr;
  bool failed_ = false;
  uint64_t exposed_ = 0;
  uint64_t consumed_ = 0;
};

}  // namespace horoacc
