#include "registration.h"

#include <memory>
#include <mutex>
#include <set>

#include "api/horoacc.h"
#include "tensorflow/core/framework/kernel_def_builder.h"

namespace horoacc {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// Process-wide, as TensorFlow's registry is.
std::vector<const RegisteredKernel*>& TheKernels() {
  static std::vector<const RegisteredKernel*> kernels;
  return kernels;
}

}  // namespace

absl::Status SameShapes(InferenceContext* context) {
  for (int t = 0; t < context->num_outputs(); ++t) context->set_output(t, context->input(t));
  return absl::OkStatus();
}

absl::Status OtherRowsAt(InferenceContext* context, int output) {
  ShapeHandle input;
  ShapeHandle result;
  absl::Status status = context->WithRankAtLeast(context->input(output), 1, &input);
  if (status.ok()) status = context->ReplaceDim(input, 0, context->UnknownDim(), &result);
  if (status.ok()) context->set_output(output, result);
  return status;
}

absl::Status OtherRows(InferenceContext* context) {
  absl::Status status;
  for (int t = 0; t < context->num_outputs() && status.ok(); ++t) status = OtherRowsAt(context, t);
  return status;
}

RegisteredKernel::RegisteredKernel(const char* op, std::initializer_list<const char*> on_host,
                                   Make make)
    : op_(op), on_host_(on_host), make_(make) {
  TheKernels().push_back(this);
  RegisterFor(tensorflow::DEVICE_CPU);
}

void RegisteredKernel::RegisterFor(const char* device_type) const {
  tensorflow::KernelDefBuilder builder(op_.c_str());
  builder.Device(device_type);
  for (const char* const name : on_host_) builder.HostMemory(name);
  const tensorflow::kernel_factory::OpKernelRegistrar registrar(builder.Build(), op_, make_);
}

}  // namespace horoacc

extern "C" {

// Registers the kernels for a type of devices with memory of CUDA GPUs. A second call does nothing.
HA_API void ha_tensorflow_register(const char* device_type) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  if (!known.insert(device_type).second) return;
  for (const horoacc::RegisteredKernel* const kernel : horoacc::TheKernels())
    kernel->RegisterFor(device_type);
}

}  // extern "C"
