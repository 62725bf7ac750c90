#pragma once
// Memory in units of 16 bytes, the widest access of a GPU thread, at any address: an unaligned load
// is two aligned loads and a shift.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/device.h"

namespace horoacc::cuda {

inline constexpr size_t kWideBytes = 16;

/// A unit of memory in registers.
template <uint32_t W>
struct [[gnu::may_alias]] alignas(W * 4) Words {
  uint32_t word[W];
};
using Wide = Words<kWideBytes / 4>;

/// An element of a user's buffer, at an address that is aligned for its type.
template <typename T>
struct [[gnu::may_alias]] Aliased {
  T value;
};

/// Where a unit lies. Elements are never in a block's own memory: a compiler that knows takes the
/// faster accesses.
template <typename Unit>
HA_INLINE Unit* InGlobal(char* at) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(at));
#endif
  return reinterpret_cast<Unit*>(at);
}
template <typename Unit>
HA_INLINE const Unit* InGlobal(const char* at) {
  return InGlobal<Unit>(const_cast<char*>(at));
}

HA_INLINE uint32_t Misalignment(const void* at, size_t unit = kWideBytes) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) % unit);
}

template <typename T>
HA_INLINE T LoadElement(const char* at) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  if (Misalignment(at, sizeof(T)) == 0) return reinterpret_cast<const Aliased<T>*>(at)->value;
  uint64_t bits = 0;
  HA_ROLLED
  for (uint32_t b = 0; b < sizeof(T); ++b) {
    bits |= uint64_t{static_cast<unsigned char>(at[b])} << (8 * b);
  }
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
HA_INLINE void StoreElement(char* at, T value) {
  if (Misalignment(at, sizeof(T)) == 0) {
    reinterpret_cast<Aliased<T>*>(at)->value = value;
    return;
  }
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  HA_ROLLED
  for (uint32_t b = 0; b < sizeof(T); ++b) at[b] = static_cast<char>(bits >> (8 * b));
}

/// The 32 bits that begin `bits` (0, 8, 16 or 24) above the lowest of low.
HA_INLINE uint32_t Funnel(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> bits);
}

/// The bytes from `off` on of two units that follow each other.
template <uint32_t W>
HA_INLINE Words<W> Shifted(const Words<W>& first, const Words<W>& second, uint32_t off) {
  uint32_t w[2 * W];
  HA_UNROLLED
  for (uint32_t i = 0; i < W; ++i) {
    w[i] = first.word[i];
    w[W + i] = second.word[i];
  }
  // The shift by words goes bit by bit, so that the indices of registers are constants.
  HA_UNROLLED
  for (uint32_t by = W / 2; by > 0; by /= 2) {
    if ((off & (4 * by)) == 0) continue;
    HA_UNROLLED
    for (uint32_t i = 0; i + by < 2 * W; ++i) w[i] = w[i + by];
  }
  Words<W> out;
  HA_UNROLLED
  for (uint32_t i = 0; i < W; ++i) out.word[i] = Funnel(w[i], w[i + 1], (off & 3) * 8);
  return out;
}

/// 16 bytes from any address. Reads whole aligned units, so up to 15 bytes before and behind: the
/// caller keeps away from the ends of a buffer (CutElements).
HA_INLINE Wide LoadWide(const char* at) {
  const uint32_t off = Misalignment(at);
  const Wide* const unit = InGlobal<Wide>(at - off);
  const Wide first = unit[0];
  return off == 0 ? first : Shifted(first, unit[1], off);
}

/// A unit to any address, in the widest pieces that are aligned there; most stores are not such.
template <uint32_t W>
HA_INLINE void StorePieces(char* at, Words<W> unit) {
  const uint32_t off = Misalignment(at, 4);
  const uint32_t piece = off == 0 ? 4 : off == 2 ? 2 : 1;
  HA_ROLLED
  for (uint32_t done = 0; done < W * 4; done += piece) {
    if (piece == 4) {
      reinterpret_cast<Aliased<uint32_t>*>(at + done)->value = unit.word[0];
    } else if (piece == 2) {
      reinterpret_cast<Aliased<uint16_t>*>(at + done)->value = static_cast<uint16_t>(unit.word[0]);
    } else {
      at[done] = static_cast<char>(unit.word[0]);
    }
    HA_UNROLLED
    for (uint32_t i = 0; i < W; ++i) {
      const uint32_t next = i + 1 < W ? unit.word[i + 1 < W ? i + 1 : i] : 0;
      unit.word[i] = piece == 4 ? next : Funnel(unit.word[i], next, 8 * piece);
    }
  }
}

template <uint32_t W>
HA_INLINE void StoreWords(char* at, const Words<W>& unit) {
  if (Misalignment(at, W * 4) == 0) {
    *InGlobal<Words<W>>(at) = unit;
  } else {
    StorePieces(at, unit);
  }
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

template <typename T, size_t N>
HA_INLINE void StoreRun(char* at, const Run<T, N>& run) {
  for (size_t u = 0; u < sizeof(run.unit) / kWideBytes; ++u) {
    StoreWords(at + u * kWideBytes, run.unit[u]);
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
HA_INLINE size_t HeadOf(const void* to, size_t element_bytes, uint32_t unit = kWideBytes) {
  const size_t gap = (unit - Misalignment(to, unit)) % unit;
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
