#pragma once
// The jobs that reduce.cc gives to the kernels: the scale is worked out, and each instruction set
// has an entry. Internal to the room and to its tests.
//
// The kernel files are compiled with flags of their own (see reduce_avx2.cc), so nothing here
// may be an inline function: the linker keeps one copy of those, and could keep the AVX-512 one.
#include <cstddef>

#include "base/dtype.h"

namespace horoacc {

struct KernelJob {
  const void* const* sources;
  size_t source_count;
  void* const* destinations;
  size_t destination_count;
  size_t count;
  DType type;
  ReduceOp op;
  bool prescales;  ///< `pre` is not 1
  bool postscales;
  double pre;      ///< of integers in float64; of floats rounded to the accumulator's type
  double post;     ///< of integers, in float64
  double divisor;  ///< of integers, in float64
  double factor;   ///< post / divisor of floats, rounded to the accumulator's type
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
