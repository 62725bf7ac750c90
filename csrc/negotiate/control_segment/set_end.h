#pragma once
// What has ended a process set, if anything has.
#include <atomic>
#include <cstdint>

namespace horoacc {

/// Zeroed memory reads as "nothing has".
class SetEnd {
 public:
  constexpr SetEnd() = default;
  [[nodiscard]] static constexpr SetEnd Removed() { return SetEnd(kRemovedWord); }
  /// A member has shut down, or has left.
  [[nodiscard]] static constexpr SetEnd Left(int global_rank) { return SetEnd(global_rank + 1); }
  /// A member's patience has ended.
  [[nodiscard]] static constexpr SetEnd GaveUp(int global_rank) {
    return SetEnd(kGaveUpWord - global_rank);
  }
  [[nodiscard]] static constexpr SetEnd FromWire(int32_t word) { return SetEnd(word); }

  [[nodiscard]] explicit operator bool() const { return word_ != 0; }
  [[nodiscard]] bool removed() const { return word_ == kRemovedWord; }
  [[nodiscard]] bool gave_up() const { return word_ <= kGaveUpWord; }
  /// The member that has left or has given up; only unless removed().
  [[nodiscard]] int rank() const { return gave_up() ? kGaveUpWord - word_ : word_ - 1; }
  [[nodiscard]] int32_t wire() const { return word_; }
  bool operator==(const SetEnd&) const = default;

 private:
  static constexpr int32_t kRemovedWord = -1;
  static constexpr int32_t kGaveUpWord = -2;  ///< less the global rank
  explicit constexpr SetEnd(int32_t word) : word_(word) {}

  int32_t word_ = 0;
};
static_assert(std::atomic<SetEnd>::is_always_lock_free);

}  // namespace horoacc
