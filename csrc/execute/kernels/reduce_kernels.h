#pragma once
// The jobs that reduce.cc gives to the kernels: the scale is worked out, and each instruction set
// has an entry. Internal to the room and to its tests.
//
// The kernel files are compiled with flags of their own (see reduce_avx2.cc), so nothing here
// may be an inline function: the linker keeps one copy of those, and could keep the AVX-512 one.
#include <cstddef>

#include "base/dtype.h"

namespace horoacc {

/// How a factor is applied to an accumulator. All give the bits of "multiply and divide in
/// float64, round once to the accumulator's type"; the cheaper ones are taken where that is proven.
/// 16-bit floats are float32 up to there: their result is the float32 result, rounded once more.
enum class ScaleStep : unsigned char {
  kNone,      ///< the factor is 1
  kMultiply,  ///< one multiplication in the accumulator's type
  kDivide,    ///< one division in the accumulator's type
  kInDouble,  ///< in float64
};

struct KernelJob {
  const void* const* sources;
  size_t source_count;
  void* const* destinations;
  size_t destination_count;
  size_t count;
  DType type;
  ReduceOp op;
  ScaleStep pre_step;
  ScaleStep post_step;
  double pre;      ///< for kMultiply and kInDouble
  double post;     ///< for kInDouble
  double divisor;  ///< for kDivide and kInDouble
  double factor;   ///< post / divisor, exact, for kMultiply
  size_t whole_bytes;
};

/// `count` elements between a type and the accumulator of reductions that are rounded once: float32
/// for 16-bit floats, int64 for integers.
struct CastJob {
  DType type;
  bool widen;  ///< to the accumulator; otherwise back to the type
  const void* from;
  void* to;
  size_t count;
};

void ReduceBaseline(const KernelJob& job);
void ReduceAvx2(const KernelJob& job);
void ReduceAvx512(const KernelJob& job);
void CastBaseline(const CastJob& job);
void CastAvx2(const CastJob& job);
void CastAvx512(const CastJob& job);

}  // namespace horoacc
