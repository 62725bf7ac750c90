// The kernels of the fake GPU: the code for GPUs, thread after thread.
#include "fake_cuda/fake_kernels.h"

#include "execute/cuda/kernels/kernel_choice.h"

namespace horoacc::testing {
namespace {

using namespace horoacc::cuda;

constexpr uint32_t kThreads = 32;

struct Reducing {
  const ReducePlan& plan;

  template <typename E, uint32_t P, typename Op>
  void Take(const Op& op) const {
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      ReduceOnGrid<E, P>(plan.args.operands, plan.args.factors, op, {0, 1, thread, kThreads});
  }
};

struct Combining {
  const AdasumPlan& plan;

  template <typename E>
  void Take() const {
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      GridAdasum<E>(plan.args).Run({0, 1, thread, kThreads});
  }
};

struct Packing {
  const PackPlan& plan;

  template <typename C>
  void Take() const {
    PackArgs args = plan.args;
    args.items = plan.items.data();
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      const uint32_t bad = PackOnGrid<C>(args, {0, 1, thread, kThreads});
      if (args.nonfinite != nullptr) *args.nonfinite += bad;
    }
  }
};

}  // namespace

void RunReduce(const cuda::ReducePlan& plan) {
  ChooseReduce(plan.type, plan.op, plan.args.operands.sources, plan.scaled, Reducing{plan});
}

void RunAdasum(const cuda::AdasumPlan& plan) { ChooseAdasum(plan.type, Combining{plan}); }

void RunPack(const cuda::PackPlan& plan) {
  ChoosePack(plan.from, plan.to, plan.as_bytes, Packing{plan});
}

}  // namespace horoacc::testing
