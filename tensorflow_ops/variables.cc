// Broadcast of variables, into the variables.
#include "collective_kernel.h"
#include "element_types.h"
#include "registration.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace horoacc {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

// Variables of TensorFlow 2: an input is a handle.
struct Resources {
  static absl::Status Read(OpKernelContext* context, int index, Tensor* value) {
    tensorflow::core::RefCountPtr<Var> variable;
    absl::Status status = LookupResource(context, HandleFromInput(context, index), &variable);
    if (!status.ok()) return status;
    const tensorflow::tf_shared_lock lock(*variable->mu());
    if (variable->is_initialized) *value = *variable->tensor();
    return absl::OkStatus();
  }

  static absl::Status Write(OpKernelContext* context, int index, const Tensor& value) {
    tensorflow::core::RefCountPtr<Var> variable;
    absl::Status status = LookupResource(context, HandleFromInput(context, index), &variable);
    if (!status.ok()) return status;
    const tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = value;
    return absl::OkStatus();
  }

  static void Pass(OpKernelContext*, int) {}
};

// Variables of TensorFlow 1: an input is a reference, which is forwarded.
struct References {
  static absl::Status Read(OpKernelContext* context, int index, Tensor* value) {
    *value = context->mutable_input(index, false);
    return absl::OkStatus();
  }

  static absl::Status Write(OpKernelContext* context, int index, const Tensor& value) {
    context->replace_ref_input(index, value, false);
    return absl::OkStatus();
  }

  static void Pass(OpKernelContext* context, int index) {
    context->forward_ref_input_to_ref_output(index, index);
  }
};

// The root sends its variables' values. The other ranks receive into new memory, which the
// variables then take: a value that was read before stays unchanged.
template <class Kind>
class BroadcastVariables {
 public:
  static constexpr ha_collective kCollective = HA_BROADCAST;
  explicit BroadcastVariables(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root_rank", &root_));
  }

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    call->head.root = root_;
    const bool sends = IsRoot(call->engine.get());
    for (int v = 0; v < context->num_inputs(); ++v) {
      Tensor present;
      absl::Status status = Kind::Read(context, v, &present);
      if (!status.ok()) return status;
      if (!present.IsInitialized())
        return absl::FailedPreconditionError("a variable is not initialized");
      if (NumberOf(present.dtype()) < 0) {
        return absl::InvalidArgumentError("a variable of type " + DataTypeString(present.dtype()) +
                                          " cannot be broadcast");
      }
      Tensor memory = present;
      if (!sends) status = context->allocate_temp(present.dtype(), present.shape(), &memory);
      if (!status.ok()) return status;
      call->Add(memory, Writable(memory));
      call->kept.push_back(memory);
    }
    return absl::OkStatus();
  }

  absl::Status Land(Ended* ended) const {
    OpKernelContext* const context = ended->context();
    const bool sent = IsRoot(ended->engine());
    for (int v = 0; v < context->num_inputs(); ++v) {
      if (!sent) {
        absl::Status status = Kind::Write(context, v, ended->call().kept[static_cast<size_t>(v)]);
        if (!status.ok()) return status;
      }
      Kind::Pass(context, v);
    }
    return absl::OkStatus();
  }

 private:
  [[nodiscard]] bool IsRoot(const ha_engine* engine) const { return RankOf(engine) == root_; }

  int root_ = 0;
};

}  // namespace

REGISTER_OP("HorovodBroadcastInplaceResource")
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int") HOROACC_COLLECTIVE.Input("variables: num_variables * resource")
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Gives every rank's variables the values of the root's, as one unit.");
HOROACC_KERNEL("HorovodBroadcastInplaceResource", CollectiveKernel<BroadcastVariables<Resources>>,
               "variables");

REGISTER_OP("HorovodBroadcastInplace")
    .Attr("T: " HOROACC_MOVED_TYPES)
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int") HOROACC_COLLECTIVE.Input("variables: Ref(num_variables * T)")
    .Output("outputs: Ref(num_variables * T)")
    .SetShapeFn(SameShapes)
    .Doc("As HorovodBroadcastInplaceResource, for reference variables of one type.");
HOROACC_KERNEL("HorovodBroadcastInplace", CollectiveKernel<BroadcastVariables<References>>);

}  // namespace horoacc
