// All-gather, broadcast and all-to-all.
#include "collective_kernel.h"
#include "element_types.h"
#include "registration.h"
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

  absl::Status Land(Ended* ended) const { return ended->GiveAll(); }
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

  absl::Status Land(Ended*) const { return absl::OkStatus(); }

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

  absl::Status Land(Ended* ended) const {
    ha_output result{};
    Tensor* received = nullptr;
    absl::Status status = ended->Result(0, &result);
    if (status.ok()) {
      status = ended->context()->allocate_output(1, TensorShape({result.nsplits}), &received);
    }
    if (!status.ok()) return status;
    auto rows = received->vec<int32_t>();
    for (int32_t rank = 0; rank < result.nsplits; ++rank)
      rows(rank) = static_cast<int32_t>(result.received_splits[rank]);
    return ended->Give(0, 0);
  }
};

absl::Status AlltoallShapes(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(1, context->Vector(context->UnknownDim()));
  return OtherRowsAt(context, 0);
}

}  // namespace

#define HOROACC_MOVEMENT HOROACC_COLLECTIVE.Attr("ignore_name_scope: bool = false")

REGISTER_OP("HorovodAllgather")
    .Attr("T: " HOROACC_MOVED_TYPES) HOROACC_MOVEMENT.Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(OtherRows)
    .Doc("Concatenates the ranks' tensors.");
HOROACC_KERNEL("HorovodAllgather", CollectiveKernel<Allgather>);

REGISTER_OP("HorovodGroupedAllgather")
    .Attr("T: list(" HOROACC_MOVED_TYPES ") >= 1") HOROACC_MOVEMENT.Input("tensors: T")
    .Output("outputs: T")
    .SetShapeFn(OtherRows)
    .Doc("Concatenates several tensors of the ranks as one unit.");
HOROACC_KERNEL("HorovodGroupedAllgather", CollectiveKernel<Allgather>);

REGISTER_OP("HorovodBroadcast")
    .Attr("T: " HOROACC_MOVED_TYPES)
    .Attr("root_rank: int") HOROACC_MOVEMENT.Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(SameShapes)
    .Doc("Gives every rank the root's tensor.");
HOROACC_KERNEL("HorovodBroadcast", CollectiveKernel<Broadcast>);

REGISTER_OP("HorovodAlltoall")
    .Attr("T: " HOROACC_MOVED_TYPES) HOROACC_MOVEMENT.Input("tensor: T")
    .Input("splits: int32")
    .Output("output: T")
    .Output("received_splits: int32")
    .SetShapeFn(AlltoallShapes)
    .Doc("Sends rows to the other ranks; splits without elements: equal parts.");
HOROACC_KERNEL("HorovodAlltoall", CollectiveKernel<Alltoall>, "splits", "received_splits");

}  // namespace horoacc
