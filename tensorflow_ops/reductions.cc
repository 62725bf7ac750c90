// Allreduce and reduce-scatter, of one tensor and of several.
#include <charconv>
#include <string>

#include "arena_allocator.h"
#include "collective_kernel.h"
#include "element_types.h"
#include "shapes.h"
#include "tensorflow/core/framework/op.h"

namespace horoacc {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// How the elements are combined; the same for every reduction.
class Reduction {
 public:
  explicit Reduction(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &op_));
    prescale_ = Factor(construction, "prescale_factor");
    postscale_ = Factor(construction, "postscale_factor");
  }

  [[nodiscard]] int op() const { return op_; }
  void Describe(ha_call* call) const {
    call->op = op_;
    call->prescale = prescale_;
    call->postscale = postscale_;
  }

 private:
  // In text, because an attribute of TensorFlow's type float would have 24 bits of it.
  static double Factor(OpKernelConstruction* construction, const char* attribute) {
    std::string text;
    double factor = 1;
    if (!construction->GetAttr(attribute, &text).ok()) return factor;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, factor);
    if (read.ec != std::errc() || read.ptr != end) {
      construction->CtxFailure(absl::InvalidArgumentError(std::string(attribute) + " is '" + text +
                                                          "', which is no number"));
    }
    return factor;
  }

  int op_ = HA_AVERAGE;
  double prescale_ = 1;
  double postscale_ = 1;
};

class Allreduce {
 public:
  static constexpr ha_collective kCollective = HA_ALLREDUCE;
  explicit Allreduce(OpKernelConstruction* construction) : reduction_(construction) {}

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    reduction_.Describe(&call->head);
    for (int t = 0; t < context->num_inputs(); ++t) {
      Tensor* output = nullptr;
      ExpectReduced(context->input(t).TotalBytes());
      // In place where nobody else reads the input.
      if (absl::Status failed =
              context->forward_input_or_allocate_output({t}, t, context->input(t).shape(), &output);
          !failed.ok())
        return failed;
      call->Add(context->input(t), Writable(*output));
    }
    return absl::OkStatus();
  }

  absl::Status Land(OpKernelContext*, const Call&, ha_engine*, ha_handle) const {
    return absl::OkStatus();
  }

 private:
  const Reduction reduction_;
};

class Reducescatter {
 public:
  static constexpr ha_collective kCollective = HA_REDUCESCATTER;
  explicit Reducescatter(OpKernelConstruction* construction) : reduction_(construction) {}

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    reduction_.Describe(&call->head);
    for (int t = 0; t < context->num_inputs(); ++t) {
      ExpectReduced(context->input(t).TotalBytes());
      call->Add(context->input(t), nullptr);
    }
    if (reduction_.op() != HA_AVERAGE && reduction_.op() != HA_SUM)
      return absl::AbortedError("Reducescatter only supports Average and Sum.");
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

 private:
  const Reduction reduction_;
};

}  // namespace

#define HOROACC_REDUCTION_ATTRIBUTES           \
  .Attr("reduce_op: int = 0")                  \
      .Attr("prescale_factor: string = '1'")   \
      .Attr("postscale_factor: string = '1'")  \
      .Attr("ignore_name_scope: bool = false") \
      .Attr("process_set_id: int = 0")         \
      .Attr("tensor_name: string = ''")        \
      .Attr("wait: bool = false")

REGISTER_OP("HorovodAllreduce")
    .Attr("T: " HOROACC_REDUCED_TYPES) HOROACC_REDUCTION_ATTRIBUTES.Input("tensor: T")
    .Output("sum: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc("Reduces a tensor over the ranks of a process set.");
REGISTER_KERNEL_BUILDER(Name("HorovodAllreduce").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Allreduce>);

REGISTER_OP("HorovodGroupedAllreduce")
    .Attr("T: list(" HOROACC_REDUCED_TYPES ") >= 1") HOROACC_REDUCTION_ATTRIBUTES
    .Input("tensors: T")
    .Output("sum: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc("Reduces several tensors as one unit.");
REGISTER_KERNEL_BUILDER(Name("HorovodGroupedAllreduce").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Allreduce>);

REGISTER_OP("HorovodReducescatter")
    .Attr("T: " HOROACC_REDUCED_TYPES) HOROACC_REDUCTION_ATTRIBUTES.Input("tensor: T")
    .Output("output: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(OtherRows)
    .Doc("Reduces a tensor and gives every rank a part of the first dimension.");
REGISTER_KERNEL_BUILDER(Name("HorovodReducescatter").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Reducescatter>);

REGISTER_OP("HorovodGroupedReducescatter")
    .Attr("T: list(" HOROACC_REDUCED_TYPES ") >= 1") HOROACC_REDUCTION_ATTRIBUTES
    .Input("tensors: T")
    .Output("outputs: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(OtherRows)
    .Doc("Reduces several tensors as one unit and gives every rank a part of each.");
REGISTER_KERNEL_BUILDER(Name("HorovodGroupedReducescatter").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<Reducescatter>);

}  // namespace horoacc
