#pragma once
// Chooses the instances of the kernels by types and operations. A launcher on a GPU and a test on
// the host visit the same ones.
#include "execute/cuda/kernels/half_elements.h"
#include "execute/cuda/kernels/pack_grid.h"
#include "execute/cuda/kernels/reduce_grid.h"

namespace horoacc::cuda {
namespace {

template <typename E, typename Visit>
void ChooseOp(ReduceOp op, Visit visit) {
  switch (op) {
    case ReduceOp::kMin:
      return visit.template Take<E, Min, 0>();
    case ReduceOp::kMax:
      return visit.template Take<E, Max, 0>();
    case ReduceOp::kProduct:
      return visit.template Take<E, Product, 0>();
    default:
      return visit.template Take<E, Sum, 0>();
  }
}

/// Most calls are sums of floats: the usual numbers of ranks have kernels of their own.
template <typename E, typename Visit>
void ChooseFloat(ReduceOp op, uint32_t sources, Visit visit) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
    if (sources == 2) return visit.template Take<E, Sum, 2>();
    if (sources == 4) return visit.template Take<E, Sum, 4>();
    if (sources == 8) return visit.template Take<E, Sum, 8>();
  }
  ChooseOp<E>(op, visit);
}

template <typename T, typename Visit>
void ChooseInteger(ReduceOp op, bool scaled, Visit visit) {
  if (scaled) return ChooseOp<ScaledInteger<T>>(op, visit);
  ChooseOp<Number<T>>(op, visit);
}

/// Of truth values as numbers 0 and 1, Or is the maximum and And the minimum.
template <typename E, typename Visit>
void ChooseTruth(ReduceOp op, Visit visit) {
  const bool all = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  if (all) return visit.template Take<E, Min, 0>();
  visit.template Take<E, Max, 0>();
}

/// Calls visit.Take<element, operation, sources or 0>() for a type of IsReducedHere().
template <typename Visit>
void ChooseReduce(DType type, ReduceOp op, uint32_t sources, bool scaled, Visit visit) {
  switch (type) {
    case DType::kBool:
      if (scaled) return ChooseTruth<ScaledBool>(op, visit);
      return ChooseTruth<Bool>(op, visit);
    case DType::kUInt8:
      return ChooseInteger<uint8_t>(op, scaled, visit);
    case DType::kInt8:
      return ChooseInteger<int8_t>(op, scaled, visit);
    case DType::kInt16:
      return ChooseInteger<int16_t>(op, scaled, visit);
    case DType::kInt32:
      return ChooseInteger<int32_t>(op, scaled, visit);
    case DType::kInt64:
      return ChooseInteger<int64_t>(op, scaled, visit);
    case DType::kFloat16:
      return ChooseFloat<Half>(op, sources, visit);
    case DType::kBFloat16:
      return ChooseFloat<BrainHalf>(op, sources, visit);
    case DType::kFloat32:
      return ChooseFloat<Number<float>>(op, sources, visit);
    case DType::kFloat64:
      return ChooseFloat<Number<double>>(op, sources, visit);
    default:
      return;
  }
}

/// Calls visit.Take<conversion>() for all types that PlanPack does not refuse.
template <typename Visit>
void ChoosePack(DType from, DType to, bool as_bytes, Visit visit) {
  using F32 = Number<float>;
  using F64 = Number<double>;
  if (as_bytes) return visit.template Take<Bytes>();
  if (from == DType::kFloat64) return visit.template Take<Conversion<F64, F64>>();
  if (from == DType::kFloat16) {
    if (to == from) return visit.template Take<Conversion<Half, Half>>();
    return visit.template Take<Conversion<Half, F32>>();
  }
  if (from == DType::kBFloat16) {
    if (to == from) return visit.template Take<Conversion<BrainHalf, BrainHalf>>();
    return visit.template Take<Conversion<BrainHalf, F32>>();
  }
  if (to == DType::kFloat16) return visit.template Take<Conversion<F32, Half>>();
  if (to == DType::kBFloat16) return visit.template Take<Conversion<F32, BrainHalf>>();
  visit.template Take<Conversion<F32, F32>>();
}

}  // namespace
}  // namespace horoacc::cuda
