// Allreduce and reduce-scatter, of one tensor and of several.
#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "arena_allocator.h"
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

// A reduction's operation and factors.
class Reduction {
 public:
  explicit Reduction(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &op_));
    OP_REQUIRES_OK(construction, construction->GetAttr("recurring", &recurring_));
    prescale_ = Factor(construction, "prescale_factor");
    postscale_ = Factor(construction, "postscale_factor");
  }

  [[nodiscard]] int op() const { return op_; }
  void Describe(ha_call* call) const {
    call->op = op_;
    call->recurring = recurring_ ? 1 : 0;
    call->prescale = prescale_;
    call->postscale = postscale_;
  }

 private:
  // As text, because TensorFlow's attributes of type float have 24 bits.
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
  bool recurring_ = false;
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
      if (call->head.gpu == nullptr) ExpectReduced(context->input(t).TotalBytes());
      // In place if TensorFlow has no other reader of the input.
      if (absl::Status failed =
              context->forward_input_or_allocate_output({t}, t, context->input(t).shape(), &output);
          !failed.ok())
        return failed;
      call->Add(context->input(t), Writable(*output));
    }
    return absl::OkStatus();
  }

  absl::Status Land(Ended*) const { return absl::OkStatus(); }

 private:
  const Reduction reduction_;
};

class Reducescatter {
 public:
  static constexpr ha_collective kCollective = HA_REDUCESCATTER;
  explicit Reducescatter(OpKernelConstruction* construction) : reduction_(construction) {}

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    reduction_.Describe(&call->head);
    const bool on_gpu = call->head.gpu != nullptr;
    for (int t = 0; t < context->num_inputs(); ++t) {
      const Tensor& input = context->input(t);
      Tensor* output = nullptr;
      if (on_gpu) {
        absl::Status failed = AllocatePart(context, t, *call, &output);
        if (!failed.ok()) return failed;
      } else {
        ExpectReduced(input.TotalBytes());
      }
      call->Add(input, output != nullptr ? Writable(*output) : nullptr);
    }
    if (reduction_.op() != HA_AVERAGE && reduction_.op() != HA_SUM)
      return absl::AbortedError("Reducescatter only supports Average and Sum.");
    return absl::OkStatus();
  }

  absl::Status Land(Ended* ended) const {
    return ended->call().head.gpu != nullptr ? absl::OkStatus() : ended->GiveAll();
  }

 private:
  // This rank's part is known beforehand, and memory of the engine would be the host's. Allocates
  // nothing if the engine is going to refuse the call.
  static absl::Status AllocatePart(OpKernelContext* context, int index, const Call& call,
                                   Tensor** output) {
    const TensorShape& whole = context->input(index).shape();
    const std::vector<int32_t> ranks = RanksOf(call.engine.get(), call.head.process_set);
    if (ranks.empty() || whole.dims() == 0) return absl::OkStatus();
    const auto size = static_cast<int64_t>(ranks.size());
    const int64_t me = std::ranges::find(ranks, RankOf(call.engine.get())) - ranks.begin();
    TensorShape part = whole;
    part.set_dim(0, whole.dim_size(0) / size + (me < whole.dim_size(0) % size ? 1 : 0));
    return context->allocate_output(index, part, output);
  }

  const Reduction reduction_;
};

}  // namespace

#define HOROACC_REDUCTION                       \
  HOROACC_COLLECTIVE.Attr("reduce_op: int = 0") \
      .Attr("prescale_factor: string = '1'")    \
      .Attr("postscale_factor: string = '1'")   \
      .Attr("recurring: bool = false")          \
      .Attr("ignore_name_scope: bool = false")

REGISTER_OP("HorovodAllreduce")
    .Attr("T: " HOROACC_REDUCED_TYPES) HOROACC_REDUCTION.Input("tensor: T")
    .Output("sum: T")
    .SetShapeFn(SameShapes)
    .Doc("Reduces a tensor over the ranks of a process set.");
HOROACC_KERNEL("HorovodAllreduce", CollectiveKernel<Allreduce>);

REGISTER_OP("HorovodGroupedAllreduce")
    .Attr("T: list(" HOROACC_REDUCED_TYPES ") >= 1") HOROACC_REDUCTION.Input("tensors: T")
    .Output("sum: T")
    .SetShapeFn(SameShapes)
    .Doc("Reduces several tensors as one unit.");
HOROACC_KERNEL("HorovodGroupedAllreduce", CollectiveKernel<Allreduce>);

REGISTER_OP("HorovodReducescatter")
    .Attr("T: " HOROACC_REDUCED_TYPES) HOROACC_REDUCTION.Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(OtherRows)
    .Doc("Reduces a tensor and gives every rank a part of the first dimension.");
HOROACC_KERNEL("HorovodReducescatter", CollectiveKernel<Reducescatter>);

REGISTER_OP("HorovodGroupedReducescatter")
    .Attr("T: list(" HOROACC_REDUCED_TYPES ") >= 1") HOROACC_REDUCTION.Input("tensors: T")
    .Output("outputs: T")
    .SetShapeFn(OtherRows)
    .Doc("Reduces several tensors as one unit and gives every rank a part of each.");
HOROACC_KERNEL("HorovodGroupedReducescatter", CollectiveKernel<Reducescatter>);

}  // namespace horoacc
