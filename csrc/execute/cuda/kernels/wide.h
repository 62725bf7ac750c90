#pragma once
// Memory in units of 16 bytes, the widest access of a GPU thread, at any address: an unaligned load
// is two aligned loads and a shift.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/device.h"

namespace horoacc::cuda {

inline constexpr size_t kWideBytes = 16;

struct [[gnu::may_alias]] alignas(kWideBytes) Wide {
  uint32_t word[4];
};

/// An element of a user's buffer, at an address that is aligned for its type.
template <typename T>
struct [[gnu::may_alias]] Aliased {
  T value;
};

HA_INLINE uint32_t Misalignment(const void* at, size_t unit = kWideBytes) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) % unit);
}

template <typename T>
HA_INLINE T LoadElement(const char* at) {
  if (Misalignment(at, sizeof(T)) == 0) return reinterpret_cast<const Aliased<T>*>(at)->value;
  T value;
  memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
HA_INLINE void StoreElement(char* at, T value) {
  if (Misalignment(at, sizeof(T)) == 0) {
    reinterpret_cast<Aliased<T>*>(at)->value = value;
  } else {
    memcpy(at, &value, sizeof(T));
  }
}

/// The 32 bits that begin `bits` (0, 8, 16 or 24) above the lowest of low.
HA_INLINE uint32_t Funnel(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> bits);
}

/// 16 bytes from any address. Reads whole aligned units, so up to 15 bytes before and behind: the
/// caller keeps away from the ends of a buffer (CutElements).
HA_INLINE Wide LoadWide(const char* at) {
  const uint32_t off = Misalignment(at);
  const Wide* const unit = reinterpret_cast<const Wide*>(at - off);
  Wide first = unit[0];
  if (off == 0) return first;
  const Wide second = unit[1];
  // The shift by words has two steps, so that the indices of registers are constants.
  uint32_t w[8] = {first.word[0],  first.word[1],  first.word[2],  first.word[3],
                   second.word[0], second.word[1], second.word[2], second.word[3]};
  if ((off & 8) != 0) {
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if ((off & 4) != 0) {
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  const uint32_t bits = (off & 3) * 8;
  for (int i = 0; i < 4; ++i) first.word[i] = Funnel(w[i], w[i + 1], bits);
  return first;
}

/// Some elements in registers, as they lie in memory.
template <typename T, size_t N>
struct Run {
  static_assert(N * sizeof(T) % kWideBytes == 0);
  union {
    Wide unit[N * sizeof(T) / kWideBytes];
    T element[N];
  };
};

template <typename T, size_t N>
HA_INLINE void LoadRun(const char* at, Run<T, N>* run) {
  for (size_t u = 0; u < sizeof(run->unit) / kWideBytes; ++u) {
    run->unit[u] = LoadWide(at + u * kWideBytes);
  }
}

/// Stores 16 bytes at a time to an aligned address, and element by element to any other.
template <typename T, size_t N>
HA_INLINE void StoreRun(char* at, const Run<T, N>& run) {
  if (Misalignment(at) == 0) {
    for (size_t u = 0; u < sizeof(run.unit) / kWideBytes; ++u) {
      reinterpret_cast<Wide*>(at)[u] = run.unit[u];
    }
  } else {
    for (size_t i = 0; i < N; ++i) StoreElement<T>(at + i * sizeof(T), run.element[i]);
  }
}

/// A cut of `count` elements: single ones, runs of `length` whose stores are aligned, single ones
/// again.
struct Cut {
  size_t head;
  size_t runs;
  size_t length;
  size_t count;

  [[nodiscard]] HA_INLINE size_t singles() const { return count - runs * length; }
  /// The i-th element that is in no run.
  [[nodiscard]] HA_INLINE size_t single(size_t i) const { return i < head ? i : i + runs * length; }
};

/// Elements before the first one at which `to` is aligned; 0 if none of its elements ever is.
HA_INLINE size_t HeadOf(const void* to, size_t element_bytes) {
  const size_t gap = (kWideBytes - Misalignment(to)) % kWideBytes;
  return gap % element_bytes == 0 ? gap / element_bytes : 0;
}

/// Runs begin behind `head` elements. `shifted`: some source is not aligned there, so its loads
/// reach beyond a run, and there is a run less at each end.
HA_INLINE Cut CutElements(size_t head, size_t length, size_t count, bool shifted) {
  const size_t before = head + (shifted ? length : 0);
  const size_t runs = count > before ? (count - before) / length : 0;
  const size_t kept = shifted && runs > 0 ? runs - 1 : runs;
  return {kept == 0 ? 0 : before, kept, length, count};
}

}  // namespace horoacc::cuda
