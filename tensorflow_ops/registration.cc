#include "registration.h"

#include <memory>
#include <mutex>
#include <set>

#include "api/horoacc.h"
#include "tensorflow/core/framework/kernel_def_builder.h"

namespace horoacc {
namespace {

// A binding is the place of process-wide state: TensorFlow has one registry.
std::vector<const RegisteredKernel*>& TheKernels() {
  static std::vector<const RegisteredKernel*> kernels;
  return kernels;
}

}  // namespace

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

// Devices of this type have the memory of CUDA's GPUs: ops with tensors there run there. A second
// call does nothing.
HA_API void ha_tensorflow_register(const char* device_type) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  if (!known.insert(device_type).second) return;
  for (const horoacc::RegisteredKernel* const kernel : horoacc::TheKernels())
    kernel->RegisterFor(device_type);
}

}  // extern "C"
