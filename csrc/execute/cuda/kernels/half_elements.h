#pragma once
// 16-bit floats with the GPU's own conversions, since those in software would take longer than the
// loads. They have the same bits but for the payload of a NaN.
#include "execute/kernels/reduce_elements.h"

namespace horoacc::cuda {
namespace {

struct Half {
  using Stored = uint16_t;
  using Acc = float;
  HA_INLINE static Acc Widen(Stored x) {
#if defined(__CUDA_ARCH__)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#else
    return HalfToFloat(x);
#endif
  }
  HA_INLINE static Stored Narrow(Acc x) {
#if defined(__CUDA_ARCH__)
    uint16_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return narrow;
#else
    return FloatToHalf(x);
#endif
  }
};

struct BrainHalf {
  using Stored = uint16_t;
  using Acc = float;
  HA_INLINE static Acc Widen(Stored x) { return BFloat16ToFloat(x); }
  HA_INLINE static Stored Narrow(Acc x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return narrow;
#else
    return FloatToBFloat16(x);
#endif
  }
};

}  // namespace
}  // namespace horoacc::cuda
