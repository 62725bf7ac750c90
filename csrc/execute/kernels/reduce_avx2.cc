// The kernels for AVX2. Compiled with
//   -O3 -ffp-contract=off -fno-trapping-math -mavx2 -mfma -mf16c
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mfma -mf16c"
#endif
#include "execute/kernels/adasum_blocks.h"
#include "execute/kernels/reduce_dispatch.h"

namespace horoacc {

void ReduceAvx2(const KernelJob& job) { ReduceAny(job); }
void ProductsAvx2(const ProductsJob& job) { ProductsAny(job); }
void CombineAvx2(const CombineJob& job) { CombineAny(job); }
void CastAvx2(const CastJob& job) { CastAny(job); }

}  // namespace horoacc
#endif
