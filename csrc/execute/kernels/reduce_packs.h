#pragma once
// Registers full of elements, as wide as the flags of the including file allow.
// Included only by the reduce_<isa>.cc files.
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "execute/kernels/reduce_elements.h"

namespace horoacc {
namespace {

#if defined(__AVX512F__)
inline constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr size_t kVectorBytes = 32;
#else
inline constexpr size_t kVectorBytes = 16;
#endif

using FloatVector [[gnu::vector_size(kVectorBytes)]] = float;
using DoubleVector [[gnu::vector_size(kVectorBytes)]] = double;
using WordVector [[gnu::vector_size(kVectorBytes)]] = uint32_t;
using ShortVector [[gnu::vector_size(kVectorBytes / 2)]] = uint16_t;

template <typename T>
HA_INLINE T LoadRaw(const void* from, size_t index) {
  return reinterpret_cast<const Raw<T>*>(static_cast<const char*>(from) + index)->value;
}

template <typename T>
HA_INLINE void StoreRaw(void* to, size_t index, T value) {
  reinterpret_cast<Raw<T>*>(static_cast<char*>(to) + index)->value = value;
}

/// One element at a time: the tail of a loop, and the types that the compiler vectorises.
template <typename E>
struct Single {
  using Stored = typename E::Stored;
  using Vector = typename E::Acc;
  static constexpr size_t kLanes = 1;
  HA_INLINE static Vector Widen(Stored x) { return E::Widen(x); }
  HA_INLINE static Stored Narrow(Vector v) { return E::Narrow(v); }
};

/// A register of accumulators, and the lanes of memory that it stands for.
template <typename E>
struct Pack : Single<E> {};

template <typename V, size_t Lanes>
struct PlainPack {
  using Stored = V;
  using Vector = V;
  static constexpr size_t kLanes = Lanes;
  HA_INLINE static V Widen(V x) { return x; }
  HA_INLINE static V Narrow(V v) { return v; }
};
template <>
struct Pack<Number<float>> : PlainPack<FloatVector, kVectorBytes / 4> {};
template <>
struct Pack<Number<double>> : PlainPack<DoubleVector, kVectorBytes / 8> {};

/// Words below 2^16 to shorts.
HA_INLINE ShortVector NarrowWords(WordVector words) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto pairs =
      _mm256_packus_epi32(reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(words));
  return reinterpret_cast<ShortVector>(
      _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0b1000)));
#else
  return __builtin_convertvector(words, ShortVector);
#endif
}

HA_INLINE WordVector WidenShorts(ShortVector shorts) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret_cast<WordVector>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(shorts)));
#elif defined(__aarch64__)
  return __builtin_bit_cast(WordVector, vmovl_u16(__builtin_bit_cast(uint16x4_t, shorts)));
#else
  return __builtin_convertvector(shorts, WordVector);
#endif
}

template <>
struct Pack<BFloat16> {
  using Stored = ShortVector;
  using Vector = FloatVector;
  static constexpr size_t kLanes = kVectorBytes / 4;
  HA_INLINE static Vector Widen(Stored x) {
    return reinterpret_cast<FloatVector>(WidenShorts(x) << 16);
  }
  HA_INLINE static Stored Narrow(Vector v) {
    const auto bits = reinterpret_cast<WordVector>(v);
    const WordVector rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const WordVector kept = v != v ? (bits | 0x00400000u) : rounded;
    return NarrowWords(kept >> 16);
  }
};

#if defined(__F16C__)
template <>
struct Pack<Float16> {
  using Vector = FloatVector;
  static constexpr size_t kLanes = kVectorBytes / 4;
#if defined(__AVX512F__)
  // With a mask, because the plain intrinsics of GCC 12 warn about their own headers.
  using Stored = __m256i;
  HA_INLINE static Vector Widen(Stored x) { return _mm512_maskz_cvtph_ps(0xffff, x); }
  HA_INLINE static Stored Narrow(Vector v) {
    return _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT);
  }
#else
  using Stored = __m128i;
  HA_INLINE static Vector Widen(Stored x) { return _mm256_cvtph_ps(x); }
  HA_INLINE static Stored Narrow(Vector v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
#endif
};
#elif defined(__aarch64__)
// Every such CPU converts.
template <>
struct Pack<Float16> {
  using Stored = ShortVector;
  using Vector = FloatVector;
  static constexpr size_t kLanes = kVectorBytes / 4;
  HA_INLINE static Vector Widen(Stored x) {
    return vcvt_f32_f16(__builtin_bit_cast(float16x4_t, x));
  }
  HA_INLINE static Stored Narrow(Vector v) {
    return __builtin_bit_cast(ShortVector, vcvt_f16_f32(v));
  }
};
#endif

/// Element `index` and its neighbours, as many as the register has lanes.
template <typename L>
HA_INLINE typename L::Vector Load(const void* from, size_t index) {
  using Stored = typename L::Stored;
  return L::Widen(LoadRaw<Stored>(from, index * (sizeof(Stored) / L::kLanes)));
}

template <typename L>
HA_INLINE void Store(void* to, size_t index, typename L::Stored value) {
  StoreRaw(to, index * (sizeof(value) / L::kLanes), value);
}

/// Store to an aligned place that is not in the cache: spares reading the line first.
template <typename L>
HA_INLINE void Stream(void* to, size_t index, typename L::Stored value) {
  constexpr size_t kBytes = sizeof(value);
  [[maybe_unused]] char* at = static_cast<char*>(to) + index * (kBytes / L::kLanes);
#if defined(__AVX512F__)
  if constexpr (kBytes == 64) {
    return _mm512_stream_si512(reinterpret_cast<__m512i*>(at), reinterpret_cast<__m512i>(value));
  }
#endif
#if defined(__AVX2__)
  if constexpr (kBytes == 32) {
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(at), reinterpret_cast<__m256i>(value));
  }
#endif
#if defined(__SSE2__)
  if constexpr (kBytes == 16) {
    return _mm_stream_si128(reinterpret_cast<__m128i*>(at), reinterpret_cast<__m128i>(value));
  }
#endif
  Store<L>(to, index, value);
}

/// Makes streamed stores visible before whatever the caller publishes next.
HA_INLINE void FenceStreams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace horoacc
