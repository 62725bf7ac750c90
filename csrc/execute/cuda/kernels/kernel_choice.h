#pragma once
// Chooses the instances of the kernels by types and operations. A launcher on a GPU and a test on
// the host visit the same ones.
#include "execute/cuda/kernels/adasum_grid.h"
#include "execute/cuda/kernels/half_elements.h"
#include "execute/cuda/kernels/pack_grid.h"
#include "execute/cuda/kernels/reduce_grid.h"

namespace horoacc::cuda {
namespace {

/// Kernels for more than 8 sources take the operation at run time: they are rare.
template <typename E, typename Visit>
void ChooseOp(ReduceOp op, uint32_t sources, Visit&& visit) {
  if (sources > 8) return visit.template Take<E, 0>(AnyOp{op});
  switch (op) {
    case ReduceOp::kMin:
      return visit.template Take<E, 8>(Fixed<Min>{});
    case ReduceOp::kMax:
      return visit.template Take<E, 8>(Fixed<Max>{});
    case ReduceOp::kProduct:
      return visit.template Take<E, 8>(Fixed<Product>{});
    default:
      return visit.template Take<E, 8>(Fixed<Sum>{});
  }
}

/// Most calls are sums of floats: those of few ranks have kernels of their own.
template <typename E, typename Visit>
void ChooseFloat(ReduceOp op, uint32_t sources, Visit&& visit) {
  if (op != ReduceOp::kSum && op != ReduceOp::kAverage) return ChooseOp<E>(op, sources, visit);
  const Fixed<Sum> sum;
  if (sources <= 2) return visit.template Take<E, 2>(sum);
  if (sources <= 4) return visit.template Take<E, 4>(sum);
  if (sources <= 8) return visit.template Take<E, 8>(sum);
  visit.template Take<E, 0>(sum);
}

template <typename T, typename Visit>
void ChooseInteger(ReduceOp op, uint32_t sources, bool scaled, Visit&& visit) {
  if (scaled) return ChooseOp<ScaledInteger<T>>(op, sources, visit);
  ChooseOp<Number<T>>(op, sources, visit);
}

/// Of truth values as numbers 0 and 1, Or is the maximum and And the minimum.
template <typename E, typename Visit>
void ChooseTruth(ReduceOp op, uint32_t sources, Visit&& visit) {
  const bool all = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  if (sources > 8) return visit.template Take<E, 0>(AnyOp{all ? ReduceOp::kMin : ReduceOp::kMax});
  if (all) return visit.template Take<E, 8>(Fixed<Min>{});
  visit.template Take<E, 8>(Fixed<Max>{});
}

/// Calls visit.Take<element, most sources or 0>(operation) for a job that PlanReduce does not
/// refuse.
template <typename Visit>
void ChooseReduce(DType type, ReduceOp op, uint32_t sources, bool scaled, Visit&& visit) {
  switch (type) {
    case DType::kBool:
      if (scaled) return ChooseTruth<ScaledBool>(op, sources, visit);
      return ChooseTruth<Bool>(op, sources, visit);
    case DType::kUInt8:
      return ChooseInteger<uint8_t>(op, sources, scaled, visit);
    case DType::kInt8:
      return ChooseInteger<int8_t>(op, sources, scaled, visit);
    case DType::kInt16:
      return ChooseInteger<int16_t>(op, sources, scaled, visit);
    case DType::kInt32:
      return ChooseInteger<int32_t>(op, sources, scaled, visit);
    case DType::kInt64:
      return ChooseInteger<int64_t>(op, sources, scaled, visit);
    case DType::kFloat16:
      return ChooseFloat<Half>(op, sources, visit);
    case DType::kBFloat16:
      return ChooseFloat<BrainHalf>(op, sources, visit);
    case DType::kFloat32:
      return ChooseFloat<Number<float>>(op, sources, visit);
    case DType::kFloat64:
      return ChooseFloat<Number<double>>(op, sources, visit);
    case DType::kComplex64:
      return visit.template Take<Number<Complex<float>>, 0>(Fixed<Product>{});
    case DType::kComplex128:
      return visit.template Take<Number<Complex<double>>, 0>(Fixed<Product>{});
  }
}

/// Calls visit.Take<element>() for a type of PlanAdasum.
template <typename Visit>
void ChooseAdasum(DType type, Visit&& visit) {
  if (type == DType::kFloat16) return visit.template Take<Half>();
  if (type == DType::kBFloat16) return visit.template Take<BrainHalf>();
  if (type == DType::kFloat32) return visit.template Take<Number<float>>();
  visit.template Take<Number<double>>();
}

/// Calls visit.Take<conversion>() for all types that PlanPack does not refuse.
template <typename Visit>
void ChoosePack(DType from, DType to, bool as_bytes, Visit&& visit) {
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
