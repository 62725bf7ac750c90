// CUDA tensors for a torch that was built without CUDA: their memory, streams and events are those
// of the fake GPU (tests/cpp/fake_cuda/fake_cuda.h). The host computes with them, with copies there
// and back, all on the current stream, for which the host waits only where CUDA would wait too:
// when it copies numbers to or from its memory. There is no autograd: torch is compiled for certain
// GPUs only.
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <functional>
#include <memory>

#include "fake_cuda/fake_cuda.h"

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr c10::DeviceType kType = c10::DeviceType::CUDA;

thread_local DeviceIndex chosen_device = 0;
thread_local c10::StreamId current_streams[FAKE_CUDA_DEVICES] = {};

void* Handle(const Stream& stream) { return reinterpret_cast<void*>(stream.id()); }

void* CurrentHandle(DeviceIndex device) { return reinterpret_cast<void*>(current_streams[device]); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  Device exchangeDevice(Device device) const override {
    const Device before(kType, chosen_device);
    chosen_device = device.index();
    return before;
  }
  Device getDevice() const override { return {kType, chosen_device}; }
  void setDevice(Device device) const override { chosen_device = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { chosen_device = device.index(); }
  Stream getStream(Device device) const override {
    return Stream(Stream::UNSAFE, device, current_streams[device.index()]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, device, 0);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return Stream(Stream::UNSAFE, device,
                  reinterpret_cast<c10::StreamId>(fake_cuda_stream(device.index())));
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return Handle(stream); }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    fake_cuda_event_free(event);
  }
  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = fake_cuda_event();
    fake_cuda_record(*event, Handle(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) fake_cuda_wait(Handle(stream), event);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || fake_cuda_is_done(event) != 0;
  }
  DeviceIndex deviceCount() const noexcept override { return FAKE_CUDA_DEVICES; }
  bool queryStream(const Stream&) const override { return false; }
  void synchronizeStream(const Stream& stream) const override {
    fake_cuda_synchronize(Handle(stream));
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

/// Like torch's caching allocator: freed memory is given away at once, and its next user works
/// behind the earlier work, on the same stream.
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = bytes > 0 ? fake_cuda_allocate(chosen_device, bytes) : nullptr;
    return {memory, memory, &Free, Device(kType, chosen_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not there"); }

 private:
  static void Free(void* memory) {
    if (memory != nullptr) fake_cuda_free(memory);
  }
};

Memory memory;

// The same numbers as the host sees them.
at::Tensor OnHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  void* const data = tensor.numel() > 0 ? fake_cuda_real(tensor.const_data_ptr()) : nullptr;
  return at::from_blob(data, tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor Empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(type), format);
}

at::Tensor EmptyStrided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                        std::optional<at::ScalarType> type, std::optional<at::Layout>,
                        std::optional<Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
      c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(type));
}

at::Tensor& Copy(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.numel() == 0) return to;
  const at::Tensor source = from.expand_as(to);
  void* const stream = CurrentHandle(to.is_cuda() ? to.device().index() : from.device().index());
  // Holds no reference: the caller, and the allocator, must keep memory until the stream is there.
  const at::Tensor target = OnHost(to);
  const at::Tensor read = OnHost(source);
  FakeCudaLaunch(stream, [target, read] {
    const at::NoGradGuard no_grad;
    target.copy_(read);
  });
  if (to.is_cpu() || from.is_cpu()) fake_cuda_synchronize(stream);
  return to;
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  Copy(target, from, non_blocking);
  return to;
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "the fake GPU's tensors are not resized");
  return CopyFrom(from, to, false);
}

void OnTheHost(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&OnTheHost>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &Empty);
  library.impl("empty_strided", &EmptyStrided);
  library.impl("copy_", &Copy);
  library.impl("_copy_from", &CopyFrom);
  library.impl("_copy_from_and_resize", &CopyFromAndResize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

void fake_torch_install() { c10::SetAllocator(kType, &memory); }

int64_t fake_torch_new_stream(int device) {
  return reinterpret_cast<int64_t>(fake_cuda_stream(device));
}
int64_t fake_torch_stream(int device) { return current_streams[device]; }
void fake_torch_use_stream(int device, int64_t stream) { current_streams[device] = stream; }

#pragma GCC visibility pop
}
