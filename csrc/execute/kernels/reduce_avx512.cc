// The kernels for AVX-512. Compiled with
//   -O3 -ffp-contract=off -fno-trapping-math
//   -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || \
    !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c"
#endif
#include "execute/kernels/adasum_blocks.h"
#include "execute/kernels/reduce_dispatch.h"

namespace horoacc {

void ReduceAvx512(const KernelJob& job) { ReduceAny(job); }
void ProductsAvx512(const ProductsJob& job) { ProductsAny(job); }
void CombineAvx512(const CombineJob& job) { CombineAny(job); }
void CastAvx512(const CastJob& job) { CastAny(job); }

}  // namespace horoacc
#endif
