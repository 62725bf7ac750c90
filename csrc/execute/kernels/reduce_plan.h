#pragma once
// From a ReduceJob to a kernel: the parts of Reduce, which tests take one by one.
#include <span>

#include "execute/kernels/adasum_kernels.h"
#include "execute/kernels/reduce.h"
#include "execute/kernels/reduce_kernels.h"

namespace horoacc {

struct KernelSet {
  const char* name;
  void (*reduce)(const KernelJob& job);
  void (*products)(const ProductsJob& job);
  void (*combine)(const CombineJob& job);
  void (*cast)(const CastJob& job);
};

/// The kernel sets that this CPU can run, widest first; the baseline is always there.
[[nodiscard]] std::span<const KernelSet> KernelSetsHere();

/// Works out the scale of a job. The result points into the job's spans.
[[nodiscard]] KernelJob PlanKernel(const ReduceJob& job);

}  // namespace horoacc
