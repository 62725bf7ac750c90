#pragma once
// Kernels, registered for the types of devices that there are.
#include <initializer_list>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace horoacc {

/// A kernel, as a static object: registered for the CPU at once, and for devices of further types
/// when ha_tensorflow_register names them. Those have the memory of CUDA's GPUs.
class RegisteredKernel {
 public:
  using Make = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

  /// `on_host` names the inputs and outputs that are in the host's memory on every device.
  RegisteredKernel(const char* op, std::initializer_list<const char*> on_host, Make make);
  void RegisterFor(const char* device_type) const;

 private:
  const std::string op_;
  const std::vector<const char*> on_host_;
  const Make make_;
};

template <class Kernel>
tensorflow::OpKernel* MakeKernel(tensorflow::OpKernelConstruction* construction) {
  return new Kernel(construction);  // TensorFlow's own
}

}  // namespace horoacc

#define HOROACC_JOINED_(a, b) a##b
#define HOROACC_NUMBERED_(a, b) HOROACC_JOINED_(a, b)

/// HOROACC_KERNEL(op, class, names of what is in the host's memory ...)
#define HOROACC_KERNEL(op, kernel, ...)                                                \
  static const ::horoacc::RegisteredKernel HOROACC_NUMBERED_(registered, __COUNTER__)( \
      op, {__VA_ARGS__}, &::horoacc::MakeKernel<kernel>)
