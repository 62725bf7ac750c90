// Broadcast of variables, into the variables.
#include "collective_kernel.h"
#include "element_types.h"
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

// The root sends what its variables hold. The others receive into new memory, which then becomes
// the variables': whoever holds a value that was read before goes on seeing it.
class BroadcastVariables {
 public:
  static constexpr ha_collective kCollective = HA_BROADCAST;
  explicit BroadcastVariables(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root_rank", &root_));
  }

  absl::Status Prepare(OpKernelContext* context, Call* call) const {
    call->head.root = root_;
    int32_t place[6];
    ha_engine_placement(TheEngine(), place);
    for (int v = 0; v < context->num_inputs(); ++v) {
      tensorflow::core::RefCountPtr<Var> variable;
      absl::Status status = LookupResource(context, HandleFromInput(context, v), &variable);
      if (!status.ok()) return status;
      Tensor present;
      {
        const tensorflow::tf_shared_lock lock(*variable->mu());
        if (!variable->is_initialized)
          return absl::FailedPreconditionError("a variable is not initialized");
        present = *variable->tensor();
      }
      if (NumberOf(present.dtype()) < 0) {
        return absl::InvalidArgumentError("a variable of type " + DataTypeString(present.dtype()) +
                                          " cannot be broadcast");
      }
      Tensor memory = present;
      if (place[0] != root_)
        status = context->allocate_temp(present.dtype(), present.shape(), &memory);
      if (!status.ok()) return status;
      call->Add(memory, Writable(memory));
      call->kept.push_back(memory);
    }
    return absl::OkStatus();
  }

  absl::Status Land(OpKernelContext* context, const Call& call, ha_engine* engine,
                    ha_handle) const {
    int32_t place[6];
    ha_engine_placement(engine, place);
    if (place[0] == root_) return absl::OkStatus();
    for (int v = 0; v < context->num_inputs(); ++v) {
      tensorflow::core::RefCountPtr<Var> variable;
      absl::Status status = LookupResource(context, HandleFromInput(context, v), &variable);
      if (!status.ok()) return status;
      const tensorflow::mutex_lock lock(*variable->mu());
      *variable->tensor() = call.kept[static_cast<size_t>(v)];
    }
    return absl::OkStatus();
  }

 private:
  int root_ = 0;
};

}  // namespace

REGISTER_OP("HorovodBroadcastInplaceResource")
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int")
    .Attr("process_set_id: int = 0")
    .Attr("tensor_name: string = ''")
    .Attr("wait: bool = false")
    .Input("variables: num_variables * resource")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Gives every rank's variables the values of the root's, as one unit.");
REGISTER_KERNEL_BUILDER(Name("HorovodBroadcastInplaceResource").Device(tensorflow::DEVICE_CPU),
                        CollectiveKernel<BroadcastVariables>);

}  // namespace horoacc
