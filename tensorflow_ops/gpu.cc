#include "gpu.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"

namespace horoacc {
namespace {

// Several copies; the last one to end calls `then` with their status.
struct Copies {
  std::vector<Upload> uploads;
  std::function<void(const absl::Status&)> then;
  std::atomic<size_t> left{0};
  std::mutex mutex;
  absl::Status status;
};

}  // namespace

absl::Status FindGpu(tensorflow::OpKernelContext* context, ha_gpu* gpu) {
  const tensorflow::DeviceContext* const device = context->op_device_context();
  const auto* const info = context->device()->tensorflow_accelerator_device_info();
  const auto* const stream = device != nullptr ? device->stream() : nullptr;
  void* const handle = stream != nullptr ? stream->platform_specific_handle().stream : nullptr;
  if (handle == nullptr || info == nullptr || info->gpu_id < 0) {
    return absl::UnimplementedError("device " + std::string(context->device()->name()) +
                                    " has no stream of CUDA's: call collectives of its tensors "
                                    "under tf.device('CPU:0')");
  }
  *gpu = {info->gpu_id, handle};
  return absl::OkStatus();
}

void StartUploads(tensorflow::OpKernelContext* context, std::vector<Upload> uploads,
                  std::function<void(const absl::Status&)> then) {
  auto copies = std::make_shared<Copies>();
  copies->uploads = std::move(uploads);
  copies->then = std::move(then);
  copies->left = copies->uploads.size();
  auto* const device = static_cast<tensorflow::Device*>(context->device());
  const tensorflow::DeviceContext* const copying = context->op_device_context();
  for (const Upload& upload : copies->uploads) {
    const auto arrived = [copies](const absl::Status& status) {
      {
        const std::lock_guard lock(copies->mutex);
        copies->status.Update(status);
      }
      if (copies->left.fetch_sub(1) == 1) copies->then(copies->status);
    };
    copying->CopyCPUTensorToDevice(&upload.from, device, upload.to, arrived);
  }
}

}  // namespace horoacc
