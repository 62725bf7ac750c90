#pragma once
// Chooses the code that runs a program. A launcher on a GPU and a test on the host visit the same
// instances.
#include "execute/cuda/kernels/half_elements.h"
#include "execute/cuda/persistent/direct_lane.h"
#include "execute/cuda/persistent/interpreter_lane.h"
#include "execute/cuda/persistent/low_latency.h"

namespace horoacc::cuda {
namespace {

/// Runs one block's part of a call. False: the call was given up.
template <typename E, typename Op, typename Cta>
HA_HOST_DEVICE inline bool RunKernelLane(Cta& cta, const KernelProgram& program,
                                         const KernelCall& call, Op op) {
  switch (program.header().kind) {
    case KernelKind::kSchedule:
      return InterpretedLane<E, Op, Cta>(cta, program, call, op).Run();
    case KernelKind::kDirect:
      return DirectLane<E, Op, Cta>(cta, program, call, op).Run();
    default:
      return LowLatency<E, Op, Cta>(cta, program, call, op).Run();
  }
}

/// Of truth values as numbers 0 and 1, Or is the maximum and And the minimum.
HA_INLINE AnyOp OpOfTruth(ReduceOp op) {
  const bool all = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  return {all ? ReduceOp::kMin : ReduceOp::kMax};
}

template <typename E, typename Visit>
void VisitFloat(ReduceOp op, const Visit& visit) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return visit.template Take<E>(Fixed<Sum>{});
  visit.template Take<E>(AnyOp{op});
}

// Each of these calls visit.Take<element>(operation) for its types.

template <typename Visit>
void VisitFloats(const KernelHeader& header, const Visit& visit) {
  switch (header.type) {
    case DType::kFloat16:
      return VisitFloat<Half>(header.op, visit);
    case DType::kBFloat16:
      return VisitFloat<BrainHalf>(header.op, visit);
    case DType::kFloat32:
      return VisitFloat<Number<float>>(header.op, visit);
    case DType::kFloat64:
      return VisitFloat<Number<double>>(header.op, visit);
    default:
      return;
  }
}

template <template <typename> typename Integer, typename Truth, typename Visit>
void VisitIntegers(const KernelHeader& header, const Visit& visit) {
  const AnyOp op{header.op};
  switch (header.type) {
    case DType::kBool:
      return visit.template Take<Truth>(OpOfTruth(header.op));
    case DType::kUInt8:
      return visit.template Take<Integer<uint8_t>>(op);
    case DType::kInt8:
      return visit.template Take<Integer<int8_t>>(op);
    case DType::kInt16:
      return visit.template Take<Integer<int16_t>>(op);
    case DType::kInt32:
      return visit.template Take<Integer<int32_t>>(op);
    case DType::kInt64:
      return visit.template Take<Integer<int64_t>>(op);
    default:
      return;
  }
}

template <typename Visit>
void VisitNumbers(const KernelHeader& header, const Visit& visit) {
  VisitIntegers<Number, Bool>(header, visit);
}

template <typename Visit>
void VisitScaled(const KernelHeader& header, const Visit& visit) {
  VisitIntegers<ScaledInteger, ScaledBool>(header, visit);
}

}  // namespace
}  // namespace horoacc::cuda
