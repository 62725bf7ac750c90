// This process's ranks and sizes, as ops for graphs; and join.
#include <algorithm>
#include <cstring>
#include <vector>

#include "collective_kernel.h"
#include "registration.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace horoacc {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status GiveNumber(OpKernelContext* context, int32_t number) {
  Tensor* output = nullptr;
  absl::Status status = context->allocate_output(0, TensorShape({}), &output);
  if (status.ok()) output->scalar<int32_t>()() = number;
  return status;
}

// One of the numbers of ha_engine_placement.
template <int kWhich>
class Place final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const EngineRef engine = TheEngine();
    OP_REQUIRES(context, engine, NotInitialized());
    int32_t numbers[6];
    ha_engine_placement(engine.get(), numbers);
    OP_REQUIRES_OK(context, GiveNumber(context, numbers[kWhich]));
  }
};

// How many ranks a process set has, or whether this process is one of them.
template <bool kIncluded>
class Membership final : public OpKernel {
 public:
  explicit Membership(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compute(OpKernelContext* context) override {
    const EngineRef engine = TheEngine();
    OP_REQUIRES(context, engine, NotInitialized());
    const std::vector<int32_t> ranks = RanksOf(engine.get(), process_set_);
    OP_REQUIRES(context, !ranks.empty(),
                absl::InvalidArgumentError("no process set with the number " +
                                           std::to_string(process_set_) + " is registered"));
    const auto size = static_cast<int32_t>(ranks.size());
    const bool member = std::ranges::find(ranks, RankOf(engine.get())) != ranks.end();
    OP_REQUIRES_OK(context, GiveNumber(context, kIncluded ? (member ? 1 : 0) : size));
  }

 private:
  int32_t process_set_ = 0;
};

class Join {
 public:
  static constexpr ha_collective kCollective = HA_JOIN;
  explicit Join(OpKernelConstruction*) {}

  absl::Status Prepare(OpKernelContext*, Call*) const { return absl::OkStatus(); }

  absl::Status Land(Ended* ended) const {
    ha_output result{};
    if (absl::Status failed = ended->Result(0, &result); !failed.ok()) return failed;
    int32_t last = -1;
    std::memcpy(&last, result.data, sizeof last);
    return GiveNumber(ended->context(), last);
  }
};

}  // namespace

#define HOROACC_PLACE(op, kernel)                            \
  REGISTER_OP(op)                                            \
      .Output("number: int32")                               \
      .SetIsStateful()                                       \
      .SetShapeFn(tensorflow::shape_inference::ScalarShape); \
  HOROACC_KERNEL(op, kernel, "number")

HOROACC_PLACE("HorovodRank", Place<0>);
HOROACC_PLACE("HorovodLocalRank", Place<2>);
HOROACC_PLACE("HorovodLocalSize", Place<3>);

#define HOROACC_MEMBERSHIP(op, kernel)                       \
  REGISTER_OP(op)                                            \
      .Attr("process_set_id: int = 0")                       \
      .Output("number: int32")                               \
      .SetIsStateful()                                       \
      .SetShapeFn(tensorflow::shape_inference::ScalarShape); \
  HOROACC_KERNEL(op, kernel, "number")

HOROACC_MEMBERSHIP("HorovodSize", Membership<false>);
HOROACC_MEMBERSHIP("HorovodProcessSetIncluded", Membership<true>);

REGISTER_OP("HorovodJoin")
HOROACC_COLLECTIVE.Output("output_last_joined_rank: int32")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Says that this rank has nothing more to reduce, and waits until all have said so.");
HOROACC_KERNEL("HorovodJoin", CollectiveKernel<Join>, "output_last_joined_rank");

}  // namespace horoacc
