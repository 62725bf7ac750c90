#pragma once
// An immutable set of sizes, which many threads read.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace horoacc {

/// Open addressing, at most half full. Zero is never a member.
class SizeSet {
 public:
  /// The members of `base` (which may be null) and the given ones.
  SizeSet(const SizeSet* base, const size_t* sizes, size_t count) {
    const size_t members = count + (base != nullptr ? base->members_ : 0);
    slots_.resize(std::bit_ceil(2 * members + 2));
    if (base != nullptr) {
      for (const size_t size : base->slots_) Insert(size);
    }
    for (size_t index = 0; index < count; ++index) Insert(sizes[index]);
  }

  [[nodiscard]] bool Contains(size_t size) const {
    for (size_t slot = SlotOf(size);; slot = Next(slot)) {
      if (slots_[slot] == size) return size != 0;
      if (slots_[slot] == 0) return false;
    }
  }

  [[nodiscard]] bool ContainsAll(const size_t* sizes, size_t count) const {
    for (size_t index = 0; index < count; ++index) {
      if (sizes[index] != 0 && !Contains(sizes[index])) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] size_t SlotOf(size_t size) const {
    // Fibonacci hashing: sizes are multiples of large powers of two.
    return static_cast<size_t>((size * uint64_t{0x9E3779B97F4A7C15}) >> 32) & (slots_.size() - 1);
  }
  [[nodiscard]] size_t Next(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }

  void Insert(size_t size) {
    if (size == 0 || Contains(size)) return;
    size_t slot = SlotOf(size);
    while (slots_[slot] != 0) slot = Next(slot);
    slots_[slot] = size;
    ++members_;
  }

  std::vector<size_t> slots_;
  size_t members_ = 0;
};

}  // namespace horoacc
