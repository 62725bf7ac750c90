#include "execute/kernels/reduce.h"

#include "execute/kernels/reduce_plan.h"

namespace horoacc {

std::span<const KernelSet> KernelSetsHere() {
  static constexpr KernelSet kSets[] = {
#if defined(__x86_64__)
      {"avx512", ReduceAvx512, ProductsAvx512, CombineAvx512, CastAvx512},
      {"avx2", ReduceAvx2, ProductsAvx2, CombineAvx2, CastAvx2},
#endif
      {"baseline", ReduceBaseline, ProductsBaseline, CombineBaseline, CastBaseline},
  };
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
#if !defined(__clang__)  // clang 14 does not know f16c, which no processor with AVX2 lacks
                    && __builtin_cpu_supports("f16c")
#endif
      ;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  return std::span(kSets).subspan(avx512 ? 0 : avx2 ? 1 : 2);
#else
  return kSets;
#endif
}

void Reduce(const ReduceJob& job) {
  if (job.count == 0 || job.sources.empty() || job.destinations.empty()) return;
  KernelSetsHere().front().reduce(PlanKernel(job));
}

DType AccumulatorOf(DType type) {
  switch (type) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return DType::kFloat32;
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
      return DType::kInt64;
    default:
      return type;
  }
}

void Widen(DType type, const void* from, void* to, size_t count) {
  KernelSetsHere().front().cast({type, true, from, to, count});
}

void Narrow(DType type, const void* from, void* to, size_t count) {
  KernelSetsHere().front().cast({type, false, from, to, count});
}

const char* ReduceInstructionSet() { return KernelSetsHere().front().name; }

}  // namespace horoacc
