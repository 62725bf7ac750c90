#include "execute/cuda/gpu.h"

namespace horoacc::cuda {
namespace {

/// What a function of the plug-in said.
Status Outcome(int code, const ha_cuda_error& error, int device) {
  if (code == 0) return {};
  return MakeError(ErrorKind::kSystem, "GPU " + std::to_string(device) + ": " + error.message);
}

}  // namespace

Result<std::shared_ptr<Gpu>> Gpu::Open(const ha_cuda_plugin& plugin, int device) {
  std::shared_ptr<Gpu> gpu(new Gpu(plugin, device));
  ha_cuda_error error{};
  HA_TRY(Outcome(plugin.open(&gpu->self_, device, &error), error, device));
  for (void** stream : {&gpu->fetching_, &gpu->landing_})
    HA_TRY(Outcome(plugin.create_stream(gpu->self_, stream, &error), error, device));
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
  ha_cuda_error error{};
  HA_TRY(Outcome(plugin_.create_event(self_, &event, &error), error, device_));
  return event;
}

Result<GpuEvent> Gpu::Record(void* stream) {
  HA_ASSIGN(void* const taken, TakeEvent());
  GpuEvent event(taken, [gpu = shared_from_this()](void* unused) {
    const std::scoped_lock lock(gpu->mutex_);
    gpu->free_events_.push_back(unused);
  });
  ha_cuda_error error{};
  HA_TRY(Outcome(plugin_.record(self_, taken, stream, &error), error, device_));
  return event;
}

Status Gpu::Wait(void* stream, const GpuEvent& event) const {
  if (!event) return {};
  ha_cuda_error error{};
  return Outcome(plugin_.wait(self_, stream, event.get(), &error), error, device_);
}

Result<bool> Gpu::IsDone(const GpuEvent& event) const {
  if (!event) return true;
  int done = 0;
  ha_cuda_error error{};
  HA_TRY(Outcome(plugin_.is_done(self_, event.get(), &done, &error), error, device_));
  return done != 0;
}

Status Gpu::Copy(void* stream, void* to, const void* from, size_t bytes) const {
  ha_cuda_error error{};
  return Outcome(plugin_.copy(self_, stream, to, from, bytes, &error), error, device_);
}

Status Gpu::Pin(void* memory, size_t bytes) const {
  ha_cuda_error error{};
  return Outcome(plugin_.pin(self_, memory, bytes, &error), error, device_);
}

void Gpu::Unpin(void* memory) const { plugin_.unpin(self_, memory); }

}  // namespace horoacc::cuda
