#pragma once
// Ops: attributes, shapes of results, and kernels for each type of device.
#include <initializer_list>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace horoacc {

/// Each output is shaped like its input.
absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context);
/// Each output is shaped like its input, but for the number of rows.
absl::Status OtherRows(tensorflow::shape_inference::InferenceContext* context);
/// The same for one output.
absl::Status OtherRowsAt(tensorflow::shape_inference::InferenceContext* context, int output);

/// A kernel, as a static object: registered for the CPU at once, and for other types of devices,
/// with memory of CUDA GPUs, when ha_tensorflow_register names them.
class RegisteredKernel {
 public:
  using Make = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

  /// `on_host`: inputs and outputs that are in the host's memory on every device.
  RegisteredKernel(const char* op, std::initializer_list<const char*> on_host, Make make);
  void RegisterFor(const char* device_type) const;

 private:
  const std::string op_;
  const std::vector<const char*> on_host_;
  const Make make_;
};

template <class Kernel>
tensorflow::OpKernel* MakeKernel(tensorflow::OpKernelConstruction* construction) {
  return new Kernel(construction);  // owned by TensorFlow
}

}  // namespace horoacc

#define HOROACC_JOINED_(a, b) a##b
#define HOROACC_NUMBERED_(a, b) HOROACC_JOINED_(a, b)

/// What all ops of collectives have in common, for REGISTER_OP.
#define HOROACC_COLLECTIVE              \
  .Attr("process_set_id: int = 0")      \
      .Attr("tensor_name: string = ''") \
      .Attr("wait: bool = false")       \
      .SetIsStateful()                  \
      .SetIsDistributedCommunication()

/// HOROACC_KERNEL(op, class, inputs and outputs in the host's memory ...)
#define HOROACC_KERNEL(op, kernel, ...)                                                \
  static const ::horoacc::RegisteredKernel HOROACC_NUMBERED_(registered, __COUNTER__)( \
      op, {__VA_ARGS__}, &::horoacc::MakeKernel<kernel>)
