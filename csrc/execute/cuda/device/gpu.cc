#include "execute/cuda/device/gpu.h"

#include "base/dtype.h"

namespace horoacc::cuda {

Status Gpu::Outcome(int code, const ha_cuda_error& error) const {
  if (code == 0) return {};
  return MakeError(ErrorKind::kSystem, "GPU " + std::to_string(device_) + ": " + error.message);
}

Result<std::shared_ptr<Gpu>> Gpu::Open(const ha_cuda_plugin& plugin, int device) {
  std::shared_ptr<Gpu> gpu(new Gpu(plugin, device));
  ha_cuda_error error{};
  HA_TRY(gpu->Outcome(plugin.open(&gpu->self_, device, &error), error));
  for (void** stream : {&gpu->to_host_, &gpu->to_device_})
    HA_TRY(gpu->Call(&ha_cuda_plugin::create_stream, stream));
  return gpu;
}

Gpu::~Gpu() {
  if (self_ == nullptr) return;
  for (void* event : free_events_) plugin_.destroy_event(self_, event);
  plugin_.close(self_);
}

Result<void*> Gpu::TakeEvent() {
  {
    const std::scoped_lock lock(mutex_);
    if (!free_events_.empty()) {
      void* const event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  void* event = nullptr;
  HA_TRY(Call(&ha_cuda_plugin::create_event, &event));
  return event;
}

Result<GpuStream> Gpu::TakeStream() {
  void* taken = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    if (!free_streams_.empty()) {
      taken = free_streams_.back();
      free_streams_.pop_back();
    }
  }
  if (taken == nullptr) HA_TRY(Call(&ha_cuda_plugin::create_stream, &taken));
  return GpuStream(taken, [gpu = shared_from_this()](void* unused) {
    const std::scoped_lock lock(gpu->mutex_);
    gpu->free_streams_.push_back(unused);
  });
}

Result<GpuEvent> Gpu::Record(void* stream) {
  HA_ASSIGN(void* const taken, TakeEvent());
  GpuEvent event(taken, [gpu = shared_from_this()](void* unused) {
    const std::scoped_lock lock(gpu->mutex_);
    gpu->free_events_.push_back(unused);
  });
  HA_TRY(Call(&ha_cuda_plugin::record, taken, stream));
  return event;
}

Status Gpu::Wait(void* stream, const GpuEvent& event) const {
  if (!event) return {};
  return Call(&ha_cuda_plugin::wait, stream, event.get());
}

Result<bool> Gpu::IsDone(const GpuEvent& event) const {
  if (!event) return true;
  int done = 0;
  HA_TRY(Call(&ha_cuda_plugin::is_done, event.get(), &done));
  return done != 0;
}

Status Gpu::Copy(void* stream, void* to, const void* from, size_t bytes) const {
  return Call(&ha_cuda_plugin::copy, stream, to, from, bytes);
}

Status Gpu::Move(void* stream, std::span<const ha_cuda_tensor> moves) const {
  if (moves.empty()) return {};
  const ha_cuda_pack job{.tensors = moves.data(),
                         .tensor_count = moves.size(),
                         .from_type = static_cast<int>(DType::kUInt8),
                         .to_type = static_cast<int>(DType::kUInt8),
                         .factor = 1,
                         .nonfinite = nullptr};
  return Call(&ha_cuda_plugin::pack, stream, &job);
}

Status Gpu::Pin(void* memory, size_t bytes) const {
  return Call(&ha_cuda_plugin::pin, memory, bytes);
}

void Gpu::Unpin(void* memory) const { plugin_.unpin(self_, memory); }

}  // namespace horoacc::cuda
