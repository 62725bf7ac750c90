#pragma once
// A rank's ring of staging places: it copies private input in window by window, so that the place
// is still in the cache when the peers read it.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "execute/execution.h"

namespace horoacc {

inline constexpr uint64_t kNoStaging = std::numeric_limits<uint64_t>::max();

/// The least of the ranks' counters. Model checks run this rule and the next on counters of theirs.
template <typename Ranks, typename Counter>
[[nodiscard]] uint64_t LeastOf(const Ranks& ranks, const Counter& counter) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const uint32_t rank : ranks) least = std::min<uint64_t>(least, counter(rank));
  return least;
}

/// The same of the first so many ranks.
template <typename Counter>
[[nodiscard]] uint64_t LeastOf(uint32_t ranks, const Counter& counter) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (uint32_t rank = 0; rank < ranks; ++rank) least = std::min<uint64_t>(least, counter(rank));
  return least;
}

/// May a rank that has exposed that many windows copy in the next one? Its place is free once
/// every rank has consumed the window that was there.
[[nodiscard]] constexpr bool HasFreePlace(uint64_t exposed, uint64_t depth,
                                          uint64_t least_consumed) {
  return exposed < least_consumed + depth;
}

/// Owns this rank's staging for one execution and moves its counters in the slot.
class WindowRing {
 public:
  struct Places {
    uint64_t bytes = 0;  ///< of each
    uint64_t depth = 0;  ///< how many
  };
  /// `stages`: this rank has private input to show. All ranks give the same number of windows.
  WindowRing(const SetContext& context, ExecSlot& slot, uint64_t windows, bool stages)
      : WindowRing(context, slot, windows, stages, {context.window_bytes, context.window_depth}) {}
  WindowRing(const SetContext& context, ExecSlot& slot, uint64_t windows, bool stages,
             Places places);
  ~WindowRing();
  WindowRing(const WindowRing&) = delete;
  WindowRing& operator=(const WindowRing&) = delete;

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] uint64_t exposed() const { return exposed_; }
  [[nodiscard]] uint64_t consumed() const { return consumed_; }
  [[nodiscard]] uint64_t windows() const { return windows_; }

  /// May window exposed() be copied in?
  [[nodiscard]] bool MayExpose() const {
    return exposed_ < windows_ && HasFreePlace(exposed_, places_.depth, LeastConsumed());
  }
  /// The place of window exposed() of this rank.
  [[nodiscard]] std::byte* OwnPlace() const {
    return own_ + (exposed_ % places_.depth) * places_.bytes;
  }
  void Expose();
  /// Have all ranks that take part exposed `window`?
  [[nodiscard]] bool AllExposed(uint64_t window) const {
    return LeastOf(context_.present, [this](uint32_t r) {
             return slot_.rank(r).exposed.load(std::memory_order_acquire);
           }) > window;
  }
  /// Where the input of rank `index` for `window` lies: zeros, if the rank takes no part.
  [[nodiscard]] const std::byte* Source(uint32_t index, uint64_t window) const {
    return context_.IsPresent(index) ? Place(index, window) : context_.zeros.get();
  }
  /// Where rank `index` put `window` (only once that rank has exposed it).
  [[nodiscard]] std::byte* Place(uint32_t index, uint64_t window) const;
  void Consume() { ConsumeTo(consumed_ + 1); }
  /// This rank needs nothing more of the windows before `window`.
  void ConsumeTo(uint64_t window);
  [[nodiscard]] bool AllConsumed() const { return LeastConsumed() >= windows_; }

 private:
  [[nodiscard]] uint64_t LeastConsumed() const {
    return LeastOf(context_.present, [this](uint32_t r) {
      return slot_.rank(r).consumed.load(std::memory_order_acquire);
    });
  }

  const SetContext& context_;
  ExecSlot& slot_;
  const uint64_t windows_;
  const Places places_;
  std::byte* own_ = nullptr;
  bool failed_ = false;
  uint64_t exposed_ = 0;
  uint64_t consumed_ = 0;
};

}  // namespace horoacc
