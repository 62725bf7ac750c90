// A device of TensorFlow's, "FAKE_GPU", whose memory and streams are those of the fake GPU
// (tests/cpp/fake_cuda/fake_cuda.h). As TensorFlow has it for CUDA's GPUs: one stream for kernels
// and others for copies, which wait for it; memory without a reference is given away at once, for
// later work of the kernels' stream; the host is called back when a copy is done. Its type is not
// "GPU", because TensorFlow has kernels for that type which only a GPU can run.
#include <cstdlib>
#include <cstring>

#include "fake_cuda/fake_cuda.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/local_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/stream_executor/stream.h"

namespace {

using namespace tensorflow;

constexpr char kType[] = "FAKE_GPU";
constexpr int kPriority = 300;  // above the CPU's: what has a kernel for it runs there

const char* Data(const Tensor& tensor) { return tensor.tensor_data().data(); }

/// The part of a stream that kernels use.
class FakeStream final : public stream_executor::Stream {
 public:
  explicit FakeStream(int device) : handle_(fake_cuda_stream(device)) {}

  PlatformSpecificHandle platform_specific_handle() const override { return {handle_}; }
  bool ok() const override { return true; }
  absl::StatusOr<Stream*> GetOrCreateSubStream() override { return None(); }
  void ReturnSubStream(Stream*) override {}
  absl::Status WaitFor(Stream*) override { return None(); }
  absl::Status WaitFor(stream_executor::Event*) override { return None(); }
  absl::Status RecordEvent(stream_executor::Event*) override { return None(); }
  absl::Status Memcpy(void*, const stream_executor::DeviceAddressBase&, uint64_t) override {
    return None();
  }
  absl::Status Memcpy(stream_executor::DeviceAddressBase*, const void*, uint64_t) override {
    return None();
  }
  absl::Status BlockHostUntilDone() override {
    fake_cuda_synchronize(handle_);
    return absl::OkStatus();
  }
  absl::Status DoHostCallbackWithStatus(absl::AnyInvocable<absl::Status() &&>) override {
    return None();
  }
  stream_executor::StreamExecutor* parent() const override { return nullptr; }
  stream_executor::CudaComputeCapability GetCudaComputeCapability() const override { return {}; }
  stream_executor::RocmComputeCapability GetRocmComputeCapability() const override { return {}; }
  stream_executor::OneAPIComputeCapability GetOneAPIComputeCapability() const override {
    return {};
  }
  std::variant<stream_executor::StreamPriority, int> priority() const override { return 0; }
  const std::string& GetName() const override { return name_; }
  void SetName(std::string name) override { name_ = std::move(name); }

 private:
  static absl::Status None() { return absl::UnimplementedError("not there (fake)"); }

  void* const handle_;
  std::string name_;
};

class FakeContext final : public DeviceContext {
 public:
  explicit FakeContext(int device)
      : kernels_(device), up_(fake_cuda_stream(device)), down_(fake_cuda_stream(device)) {}

  stream_executor::Stream* stream() const override { return const_cast<FakeStream*>(&kernels_); }
  void* handle() const { return kernels_.platform_specific_handle().stream; }

  void CopyCPUTensorToDevice(const Tensor* from, Device*, Tensor* to, StatusCallback done,
                             bool) const override {
    Copy(up_, *from, *to, std::move(done));
  }
  void CopyDeviceTensorToCPU(const Tensor* from, absl::string_view, Device*, Tensor* to,
                             StatusCallback done) override {
    Copy(down_, *from, *to, std::move(done));
  }
  void CopyTensorInSameDevice(const Tensor* from, Device*, Tensor* to,
                              StatusCallback done) const override {
    Copy(handle(), *from, *to, std::move(done));
  }

 private:
  // Keeps the source, as TensorFlow does; the caller has to keep the target.
  void Copy(void* stream, const Tensor& source, const Tensor& target, StatusCallback done) const {
    if (stream != handle()) {
      void* const now = fake_cuda_event();
      fake_cuda_record(now, handle());
      fake_cuda_wait(stream, now);
    }
    void* const to = const_cast<char*>(Data(target));
    FakeCudaLaunch(stream, [source, to, done = std::move(done)] {
      if (const size_t bytes = source.TotalBytes(); bytes > 0)
        std::memcpy(fake_cuda_real(to), fake_cuda_real(Data(source)), bytes);
      // Not on the stream's thread, for which later work may wait.
      tsl::Env::Default()->SchedClosure([done] { done(absl::OkStatus()); });
    });
  }

  const FakeStream kernels_;
  void* const up_;
  void* const down_;
};

class FakeAllocator final : public Allocator {
 public:
  explicit FakeAllocator(int device) : device_(device) {}
  std::string Name() override { return "fake_gpu"; }
  void* AllocateRaw(size_t, size_t bytes) override { return fake_cuda_allocate(device_, bytes); }
  void DeallocateRaw(void* memory) override { fake_cuda_free(memory); }
  AllocatorMemoryType GetMemoryType() const override { return AllocatorMemoryType::kDevice; }

 private:
  const int device_;
};

class FakeDevice final : public LocalDevice {
 public:
  FakeDevice(const SessionOptions& options, const DeviceAttributes& attributes, int device)
      : LocalDevice(options, attributes), allocator_(device), context_(new FakeContext(device)) {
    info_.stream = context_->stream();
    info_.default_context = context_;
    info_.gpu_id = device;
    set_tensorflow_accelerator_device_info(&info_);
  }

  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    return attributes.on_host() ? cpu_allocator() : &allocator_;
  }
  absl::Status Sync() override {
    fake_cuda_synchronize(context_->handle());
    return absl::OkStatus();
  }
  absl::Status TryGetDeviceContext(DeviceContext** context) override {
    context_->Ref();
    *context = context_;
    return absl::OkStatus();
  }
  absl::Status MakeTensorFromProto(const TensorProto& proto, AllocatorAttributes attributes,
                                   Tensor* tensor) override {
    Tensor parsed(proto.dtype());
    if (!parsed.FromProto(cpu_allocator(), proto))
      return absl::InvalidArgumentError("no tensor (fake)");
    if (attributes.on_host()) {
      *tensor = parsed;
      return absl::OkStatus();
    }
    *tensor = Tensor(&allocator_, parsed.dtype(), parsed.shape());
    return context_->CopyCPUTensorToDeviceSync(&parsed, this, tensor);
  }

 private:
  FakeAllocator allocator_;
  FakeContext* const context_;  // streams go with the process
  AcceleratorDeviceInfo info_;
};

class FakeFactory final : public DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back(std::string("/physical_device:") + kType + ":0");
    return absl::OkStatus();
  }
  absl::Status CreateDevices(const SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<Device>>* devices) override {
    // With a GPU for each rank TensorFlow's device 0 is another GPU on the second rank.
    const char* const rank = std::getenv("HOROACC_RANK");
    const bool each = std::getenv("FAKE_GPU_EACH") != nullptr && rank != nullptr;
    const int device = each ? std::atoi(rank) % FAKE_CUDA_DEVICES : 0;
    const DeviceAttributes attributes = Device::BuildDeviceAttributes(
        prefix + "/device:" + kType + ":0", DeviceType(kType), Bytes(1 << 30), DeviceLocality());
    devices->push_back(std::make_unique<FakeDevice>(options, attributes, device));
    return absl::OkStatus();
  }
};

REGISTER_LOCAL_DEVICE_FACTORY(kType, FakeFactory, kPriority);

REGISTER_OP("FakeTwice")
    .Input("given: float")
    .Output("twice: float")
    .SetShapeFn([](shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    });

/// A kernel as GPUs have them: put on the stream, and forgotten.
class FakeTwice final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& given = context->input(0);
    Tensor* twice = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, given.shape(), &twice));
    const auto* const from = static_cast<const float*>(fake_cuda_real(Data(given)));
    auto* const to = static_cast<float*>(fake_cuda_real(Data(*twice)));
    void* const stream = context->op_device_context()->stream()->platform_specific_handle().stream;
    FakeCudaLaunch(stream, [from, to, count = given.NumElements()] {
      for (int64_t i = 0; i < count; ++i) to[i] = 2 * from[i];
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("FakeTwice").Device(kType), FakeTwice);

/// Of reference variables, which TensorFlow has for GPUs of its own only.
class FakeAssign final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    context->replace_ref_input(0, context->input(1), false);
    context->forward_ref_input_to_ref_output(0, 0);
  }
};

REGISTER_KERNEL_BUILDER(Name("Assign").Device(kType), FakeAssign);

}  // namespace
