#pragma once
// From the type and operation of a job to its loop. Included only by the reduce_<isa>.cc files.
#include "execute/kernels/reduce_blocks.h"

namespace horoacc {
namespace {

/// Streaming past the cache made jobs of 4 MiB and more 5 to 35 % faster where nothing is in place,
/// and slower by half or more where the stored lines had just been read.
inline constexpr size_t kStreamBytes = size_t{4} << 20;

bool ShouldStream(const KernelJob& job, size_t element_bytes) {
  if (job.count * element_bytes < kStreamBytes && job.whole_bytes < kStreamBytes) return false;
  for (size_t d = 0; d < job.destination_count; ++d) {
    if (reinterpret_cast<uintptr_t>(job.destinations[d]) % kVectorBytes != 0) return false;
    for (size_t s = 0; s < job.source_count; ++s) {
      if (job.destinations[d] == job.sources[s]) return false;
    }
  }
  return true;
}

template <typename E, size_t P>
void ReduceDirect(const KernelJob& job) {
  const bool streams = ShouldStream(job, sizeof(typename E::Stored));
  TreeToDestinations<Sum, P> tree{.source = {},
                                  .destinations = job.destinations,
                                  .destination_count = job.destination_count,
                                  .factor = job.factor,
                                  .streams = streams};
  for (size_t p = 0; p < P; ++p) tree.source[p] = job.sources[p];
  ForEach<E>(job.count, tree);
  if (streams) FenceStreams();
}

/// Sums of floating-point numbers, which are most of the traffic: the common rank counts keep
/// everything in registers.
template <typename E>
void ReduceSum(const KernelJob& job) {
  if constexpr (Pack<E>::kLanes > 1) {
    if (!job.prescales) {
      switch (job.source_count) {
        case 2:
          return ReduceDirect<E, 2>(job);
        case 3:
          return ReduceDirect<E, 3>(job);
        case 4:
          return ReduceDirect<E, 4>(job);
        case 8:
          return ReduceDirect<E, 8>(job);
        default:
          break;
      }
    }
  }
  ReduceBlocks<E, Sum>(job);
}

template <typename E>
void ReduceNumber(const KernelJob& job) {
  switch (job.op) {
    case ReduceOp::kMin:
      return ReduceBlocks<E, Min>(job);
    case ReduceOp::kMax:
      return ReduceBlocks<E, Max>(job);
    case ReduceOp::kProduct:
      return ReduceBlocks<E, Product>(job);
    default:
      if constexpr (kIsInteger<typename E::Acc>)
        return ReduceBlocks<E, Sum>(job);
      else
        return ReduceSum<E>(job);
  }
}

/// The sum of complex numbers is the sum of twice as many real ones.
template <typename T>
void ReduceComplex(KernelJob job) {
  if (job.op == ReduceOp::kProduct) {
    return ReduceBlocks<Number<Complex<T>>, Product>(job);
  }
  job.count *= 2;
  ReduceSum<Number<T>>(job);
}

bool HasScale(const KernelJob& job) { return job.prescales || job.postscales; }

/// Bits are not scaled.
template <typename E>
bool ReduceBits(const KernelJob& job) {
  switch (job.op) {
    case ReduceOp::kBitAnd:
      ReduceBlocks<E, BitAnd>(job);
      return true;
    case ReduceOp::kBitOr:
      ReduceBlocks<E, BitOr>(job);
      return true;
    case ReduceOp::kBitXor:
      ReduceBlocks<E, BitXor>(job);
      return true;
    default:
      return false;
  }
}

template <typename T>
void ReduceWhole(const KernelJob& job) {
  if (ReduceBits<Number<T>>(job)) return;
  if (HasScale(job)) return ReduceNumber<ScaledInteger<T>>(job);
  ReduceNumber<Number<T>>(job);
}

template <typename E>
void ReduceTruth(const KernelJob& job) {
  const bool all = job.op == ReduceOp::kMin || job.op == ReduceOp::kProduct;
  if (all) return ReduceBlocks<E, Min>(job);
  ReduceBlocks<E, Max>(job);
}

/// Or is the greatest and And the least of the numbers 0 and 1.
void ReduceBool(KernelJob job) {
  if (ReduceBits<Bool>(job)) return;
  if (!HasScale(job)) return ReduceTruth<Bool>(job);
  job.pre = Truncate(job.pre) != 0 ? 1.0 : 0.0;
  ReduceTruth<ScaledBool>(job);
}

template <typename E>
void Cast(const CastJob& job) {
  using Acc = typename E::Acc;
  if (!job.widen) return Narrow<E>(static_cast<const Acc*>(job.from), job.count, job.to);
  const void* sources[] = {job.from};
  Fold<E, Sum, 1>(sources, job.count, static_cast<Acc*>(job.to));
}

void CastAny(const CastJob& job) {
  switch (job.type) {
    case DType::kUInt8:
      return Cast<ScaledInteger<uint8_t>>(job);
    case DType::kInt8:
      return Cast<ScaledInteger<int8_t>>(job);
    case DType::kInt16:
      return Cast<ScaledInteger<int16_t>>(job);
    case DType::kInt32:
      return Cast<ScaledInteger<int32_t>>(job);
    case DType::kFloat16:
      return Cast<Float16>(job);
    case DType::kBFloat16:
      return Cast<BFloat16>(job);
    default:
      return;  // accumulated in itself: there is nothing to cast
  }
}

void ReduceAny(const KernelJob& job) {
  switch (job.type) {
    case DType::kBool:
      return ReduceBool(job);
    case DType::kUInt8:
      return ReduceWhole<uint8_t>(job);
    case DType::kInt8:
      return ReduceWhole<int8_t>(job);
    case DType::kInt16:
      return ReduceWhole<int16_t>(job);
    case DType::kInt32:
      return ReduceWhole<int32_t>(job);
    case DType::kInt64:
      return ReduceWhole<int64_t>(job);
    case DType::kFloat16:
      return ReduceNumber<Float16>(job);
    case DType::kBFloat16:
      return ReduceNumber<BFloat16>(job);
    case DType::kFloat32:
      return ReduceNumber<Number<float>>(job);
    case DType::kFloat64:
      return ReduceNumber<Number<double>>(job);
    case DType::kComplex64:
      return ReduceComplex<float>(job);
    case DType::kComplex128:
      return ReduceComplex<double>(job);
  }
}

}  // namespace
}  // namespace horoacc
