#pragma once
// The kernels of the fake GPU.
#include "execute/cuda/kernels/kernel_plan.h"

namespace horoacc::testing {

/// Run a launch of the plan, whose memory is the host's.
void RunReduce(const cuda::ReducePlan& plan);
void RunAdasum(const cuda::AdasumPlan& plan);
void RunPack(const cuda::PackPlan& plan);

}  // namespace horoacc::testing
