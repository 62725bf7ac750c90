#pragma once
// The loops of Adasum. Included only by the reduce_<isa>.cc files.
#include "execute/kernels/adasum_lanes.h"

namespace horoacc {
namespace {

/// Element types of Adasum, widened to float64.
template <typename E>
struct Wide {
  using Stored = typename E::Stored;
  HA_INLINE static double Load(const void* from, size_t index) {
    return E::Widen(static_cast<const Raw<Stored>*>(from)[index].value);
  }
  HA_INLINE static void Store(void* to, size_t index, double x) {
    static_cast<Raw<Stored>*>(to)[index].value = E::Narrow(static_cast<typename E::Acc>(x));
  }
};

using Lanes [[gnu::vector_size(kProductLanes * sizeof(double))]] = double;
using LanesInMemory [[gnu::aligned(8)]] = Lanes;

/// The products of one block of two sources, added to lanes.
template <typename E>
void AddBlock(const double* left, const double* right, size_t count, double* lanes) {
  Lanes high = *reinterpret_cast<const LanesInMemory*>(lanes);
  Lanes low = *reinterpret_cast<const LanesInMemory*>(lanes + kProductLanes);
  for (size_t k = 0; k < count; k += kProductLanes) {
    const Lanes a = *reinterpret_cast<const LanesInMemory*>(left + k);
    const Lanes b = *reinterpret_cast<const LanesInMemory*>(right + k);
    AddProduct<kExactProducts<E>>(a, b, &high, &low);
  }
  *reinterpret_cast<LanesInMemory*>(lanes) = high;
  *reinterpret_cast<LanesInMemory*>(lanes + kProductLanes) = low;
}

template <typename E>
void ProductsOf(const ProductsJob& job) {
  const size_t pairs = job.source_count * (job.source_count + 1) / 2;
  double* const sums = job.scratch + job.source_count * kProductBlock;
  for (size_t k = 0; k < pairs * kPairDoubles; ++k) sums[k] = 0;
  for (size_t at = job.first; at < job.last; at += kProductBlock) {
    const size_t left = job.last - at;
    const size_t count = left < kProductBlock ? left : kProductBlock;
    const size_t rounded = (count + kProductLanes - 1) / kProductLanes * kProductLanes;
    for (size_t s = 0; s < job.source_count; ++s) {
      double* const block = job.scratch + s * kProductBlock;
      for (size_t k = 0; k < count; ++k) block[k] = Wide<E>::Load(job.sources[s], at + k);
      for (size_t k = count; k < rounded; ++k) block[k] = 0;
    }
    double* lanes = sums;
    for (size_t b = 0; b < job.source_count; ++b) {
      for (size_t a = 0; a <= b; ++a, lanes += kPairDoubles) {
        AddBlock<E>(job.scratch + a * kProductBlock, job.scratch + b * kProductBlock, rounded,
                    lanes);
      }
    }
  }
  for (size_t pair = 0; pair < pairs; ++pair)
    job.products[pair] = Folded(sums + pair * kPairDoubles);
}

template <typename E>
void CombineOf(const CombineJob& job) {
  double block[kProductBlock];
  for (size_t at = job.first; at < job.last; at += kProductBlock) {
    const size_t left = job.last - at;
    const size_t count = left < kProductBlock ? left : kProductBlock;
    for (size_t k = 0; k < count; ++k)
      block[k] = job.factors[0] * Wide<E>::Load(job.sources[0], at + k);
    for (size_t s = 1; s < job.source_count; ++s) {
      for (size_t k = 0; k < count; ++k)
        block[k] += job.factors[s] * Wide<E>::Load(job.sources[s], at + k);
    }
    for (size_t d = 0; d < job.destination_count; ++d) {
      for (size_t k = 0; k < count; ++k) Wide<E>::Store(job.destinations[d], at + k, block[k]);
    }
  }
}

void ProductsAny(const ProductsJob& job) {
  switch (job.type) {
    case DType::kFloat16:
      return ProductsOf<Float16>(job);
    case DType::kBFloat16:
      return ProductsOf<BFloat16>(job);
    case DType::kFloat32:
      return ProductsOf<Number<float>>(job);
    case DType::kFloat64:
      return ProductsOf<Number<double>>(job);
    default:
      return;  // CheckReducible has refused it
  }
}

void CombineAny(const CombineJob& job) {
  switch (job.type) {
    case DType::kFloat16:
      return CombineOf<Float16>(job);
    case DType::kBFloat16:
      return CombineOf<BFloat16>(job);
    case DType::kFloat32:
      return CombineOf<Number<float>>(job);
    case DType::kFloat64:
      return CombineOf<Number<double>>(job);
    default:
      return;
  }
}

}  // namespace
}  // namespace horoacc
