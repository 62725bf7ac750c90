#pragma once
// The kernels of the fake GPU.
#include "execute/cuda/kernels/kernel_plan.h"

namespace horoacc::testing {

/// What a launch of the plan does. Its memory is the host's.
void RunReduce(const cuda::ReducePlan& plan);
void RunPack(const cuda::PackPlan& plan);

}  // namespace horoacc::testing
