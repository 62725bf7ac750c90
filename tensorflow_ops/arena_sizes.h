#pragma once
// The sizes of tensors that kernels have reduced.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace horoacc {

/// A set that threads read and extend without a lock. It has room for a model's sizes; when it is
/// full, further ones are not added.
class ArenaSizes {
 public:
  [[nodiscard]] bool Contains(size_t size) const {
    for (size_t tried = 0, slot = SlotOf(size); tried < kSlots; ++tried, slot = Next(slot)) {
      const size_t found = slots_[slot].load(std::memory_order_relaxed);
      if (found == size) return size != 0;
      if (found == 0) return false;
    }
    return false;
  }

  void Add(size_t size) {
    if (size == 0 || Contains(size)) return;
    // Half of the slots stay empty, so that probing ends soon.
    if (members_.fetch_add(1, std::memory_order_relaxed) >= kSlots / 2) {
      members_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    for (size_t slot = SlotOf(size);; slot = Next(slot)) {
      size_t found = 0;
      if (slots_[slot].compare_exchange_strong(found, size, std::memory_order_relaxed)) return;
      if (found != size) continue;
      members_.fetch_sub(1, std::memory_order_relaxed);  // another thread was faster
      return;
    }
  }

 private:
  static constexpr size_t kSlots = 4096;

  [[nodiscard]] static size_t SlotOf(size_t size) {
    // Fibonacci hashing: sizes are multiples of large powers of two.
    return static_cast<size_t>((size * uint64_t{0x9E3779B97F4A7C15}) >> 32) % kSlots;
  }
  [[nodiscard]] static size_t Next(size_t slot) { return (slot + 1) % kSlots; }

  std::array<std::atomic<size_t>, kSlots> slots_{};
  std::atomic<size_t> members_{0};
};

}  // namespace horoacc
