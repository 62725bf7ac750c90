#pragma once
// The reduction kernels: P sources to any number of destinations in one pass, canonical order.
#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "base/result.h"

namespace horoacc {

/// One pass over `count` elements. Element i of every destination becomes
/// op-over-ranks(source[r][i]) along the balanced binary tree over rank numbers: n ranks split
/// at the largest power of two below n, so P=6 is ((0+1)+(2+3))+(4+5).
/// A destination may be the same pointer as a source (in place); otherwise nothing overlaps.
/// 16-bit floats accumulate in float32 and are rounded once, to nearest even.
struct ReduceJob {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  size_t count = 0;
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scale scale;
  /// Of the work of which this is a part, if it is larger: whether the result stays in the cache
  /// depends on it.
  size_t whole_bytes = 0;
};

/// Says whether `op` has a meaning for `type` (min of complex numbers, average of bool do not).
[[nodiscard]] Status CheckReducible(DType type, ReduceOp op);

/// Runs the job with the widest vector unit of this CPU. The job must be reducible.
void Reduce(const ReduceJob& job);

/// The type in which Reduce accumulates `type` when it scales: float32 for 16-bit floats, int64 for
/// integers. Reducing parts to it, the parts to each other in the tree's order, and rounding once
/// gives the bits of one pass.
[[nodiscard]] DType AccumulatorOf(DType type);
/// Elements of `type` to AccumulatorOf(type), exactly; nothing overlaps.
void Widen(DType type, const void* from, void* to, size_t count);
/// And back: floats are rounded to nearest even, integers wrap.
void Narrow(DType type, const void* from, void* to, size_t count);

/// Name of the instruction set that Reduce uses here: "avx512", "avx2" or "baseline".
[[nodiscard]] const char* ReduceInstructionSet();

}  // namespace horoacc
