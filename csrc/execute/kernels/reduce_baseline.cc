// The kernels for every CPU of the architecture. Compiled with
//   -O3 -ffp-contract=off -fno-trapping-math
// The last lets GCC vectorise selects between floating-point results; it changes no result.
#include "execute/kernels/adasum_blocks.h"
#include "execute/kernels/reduce_dispatch.h"

namespace horoacc {

void ReduceBaseline(const KernelJob& job) { ReduceAny(job); }
void ProductsBaseline(const ProductsJob& job) { ProductsAny(job); }
void CombineBaseline(const CombineJob& job) { CombineAny(job); }
void CastBaseline(const CastJob& job) { CastAny(job); }

}  // namespace horoacc
