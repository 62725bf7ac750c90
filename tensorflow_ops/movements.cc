// All-gather, broadcast and all-to-all.
#include "collective_kernel.h"
#include "element_types.h"
#include "shapes.h"
#include "tensorflow/core/framework/op.h"

namespace horoacc {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class Allgather {
 public:
  static constexpr ha_collective kCollective = HA_ALLGATHER;
  explicit Allgather(OpKernelConstruction*) {}

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    for (int t = 0; t < context->num_inputs(); ++t) call->Add(context->input(t), nullptr);
    return absl::OkStatus();
  }

  absl::Status Land(OpKernelContext* context, const Call& call, ha_engine* engine,
                    ha_handle handle) const {
    for (size_t t = 0; t < call.members.size(); ++t) {
      absl::Status given = GiveOutput(context, static_cast<int>(t), engine, handle, t);
      if (!given.ok()) return given;
    }
    return absl::OkStatus();
  }
};

class Broadcast {
 public:
  static constexpr ha_collective kCollective = HA_BROADCAST;
  explicit Broadcast(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root_rank", &root_));
  }

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    call->head.root = root_;
    Tensor* output = nullptr;
    absl::Status status =
        context->forward_input_or_allocate_output({0}, 0, context->input(0).shape(), &output);
    if (status.ok()) call->Add(context->input(0), Writable(*output));
    return status;
  }

  absl::Status Land(OpKernelContext*, const Call&, ha_engine*, ha_handle) const {
    return absl::OkStatus();
  }

 private:
  int root_ = 0;
};

class Alltoall {
 public:
  static constexpr ha_collective kCollective = HA_ALLTOALL;
  explicit Alltoall(OpKernelConstruction*) {}

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    const Tensor& splits = context->input(1);
    if (splits.dims() != 1) {
      return absl::InvalidArgumentError("splits must have one dimension, not " +
                                        std::to_string(splits.dims()));
    }
    const auto rows = splits.vec<int32_t>();
    for (int64_t rank = 0; rank < rows.size(); ++rank) call->splits.push_back(rows(rank));
    call->Add(context->input(0), nullptr);
    return absl::OkStatus();
  }

  absl::Status Land(OpKernelContext* context, const Call&, ha_engine* engine,
                    ha_handle handle) const {
    ha_output result{};
    ha_error error{};
    if (ha_result(engine, handle, 0, &result, &error) != HA_OK) return StatusOf(error);
    Tensor* received = nullptr;
    if (absl::Status failed = context->allocate_output(1, TensorShape({result.nsplits}), &received);
        !failed.ok())
      return failed;
    auto rows = received->vec<int32_t>();
    for (int32_t rank = 0; rank < result.nsplits; ++rank)
      rows(rank) = static_cast<int32_t>(result.received_splits[rank]);
    return GiveOutput(context, 0, engine, handle, 0);
  }
};

absl::Status AlltoallShapes(tensorflow::shape_inference::InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle input;
  tensorflow::shape_inference::ShapeHandle output;
  absl::Status status = context->WithRankAtLeast(context->input(0), 1, &input);
  if (status.ok()) status = context->ReplaceDim(input, 0, context->UnknownDim(), &output);
  if (!status.ok()) return status;
  context->set_output(0, output);
  context->set_output(1, context->Vector(context->UnknownDim()));
  return absl::OkStatus();
}

}  // namespace

#define HOROACC_MOVEMENT_ATTRIBUTES        \
  .Attr("ignore_name_scope: bool = false") \
      .Attr("process_set_id: int = 0")     \
      .Attr("tensor_name: string = ''")    \
      .Attr("wait: bool = false")

REGISTER_OP("HorovodAllgather")
    .Attr("T: " HOROACC_MOVED_TYPES) HOROACC_MOVEMENT_ATTRIBUTES.Input("tensor: T")
    .Output("output: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(OtherRows)
    .Doc("Concatenates the ranks' tensors.");
REGISTER_KERNEL_BUILDER(Name("HorovodAllgather").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Allgather>);

REGISTER_OP("HorovodGroupedAllgather")
    .Attr("T: list(" HOROACC_MOVED_TYPES ") >= 1") HOROACC_MOVEMENT_ATTRIBUTES.Input("tensors: T")
    .Output("outputs: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(OtherRows)
    .Doc("Concatenates several tensors of the ranks as one unit.");
REGISTER_KERNEL_BUILDER(Name("HorovodGroupedAllgather").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Allgather>);

REGISTER_OP("HorovodBroadcast")
    .Attr("T: " HOROACC_MOVED_TYPES)
    .Attr("root_rank: int") HOROACC_MOVEMENT_ATTRIBUTES.Input("tensor: T")
    .Output("output: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc("Gives every rank the root's tensor.");
REGISTER_KERNEL_BUILDER(Name("HorovodBroadcast").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Broadcast>);

REGISTER_OP("HorovodAlltoall")
    .Attr("T: " HOROACC_MOVED_TYPES) HOROACC_MOVEMENT_ATTRIBUTES.Input("tensor: T")
    .Input("splits: int32")
    .Output("output: T")
    .Output("received_splits: int32")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(AlltoallShapes)
    .Doc("Sends rows to the other ranks; splits without elements: equal parts.");
REGISTER_KERNEL_BUILDER(Name("HorovodAlltoall").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Alltoall>);

}  // namespace horoacc
