// The CUDA runtime's streams and events, behind the plug-in's contract.
#include "execute/cuda/plugin/current_device.cuh"
#include "execute/cuda/plugin/streams.h"

namespace horoacc::cuda {
namespace {

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

Status Streams::Pin(void* memory, size_t bytes) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  const cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  // Left alone, the error would be reported by the next launch.
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return Check(code, "cudaHostRegister");
}

void Streams::Unpin(void* memory) const {
  const CurrentDevice current(device_);
  if (cudaHostUnregister(memory) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

Status Streams::CreateStream(void** stream) {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  int least = 0;
  int greatest = 0;
  HA_TRY(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
               "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t created = nullptr;
  HA_TRY(Check(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, greatest),
               "cudaStreamCreateWithPriority"));
  const std::scoped_lock lock(mutex_);
  created_.push_back(created);
  *stream = created;
  return {};
}

Status Streams::CreateEvent(void** event) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaEvent_t created = nullptr;
  HA_TRY(Check(cudaEventCreateWithFlags(&created, cudaEventDisableTiming), "cudaEventCreate"));
  *event = created;
  return {};
}

void Streams::DestroyEvent(void* event) const {
  const CurrentDevice current(device_);
  // What fails here has failed before, and been reported.
  static_cast<void>(cudaEventDestroy(Event(event)));
}

Status Streams::Record(void* event, void* stream) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  HA_TRY(Check(cudaStreamIsCapturing(Stream(stream), &capture), "cudaStreamIsCapturing"));
  if (capture != cudaStreamCaptureStatusNone) {
    return MakeError(ErrorKind::kUnsupported,
                     "collectives cannot be captured into a CUDA graph: the host takes part in "
                     "them; call them between graphs");
  }
  return Check(cudaEventRecord(Event(event), Stream(stream)), "cudaEventRecord");
}

Status Streams::Wait(void* stream, void* event) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  return Check(cudaStreamWaitEvent(Stream(stream), Event(event), 0), "cudaStreamWaitEvent");
}

Status Streams::IsDone(void* event, int* done) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  const cudaError_t code = cudaEventQuery(Event(event));
  *done = code == cudaSuccess ? 1 : 0;
  if (code == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // it is no error
    return {};
  }
  return Check(code, "cudaEventQuery");
}

Status Streams::Copy(void* stream, void* to, const void* from, size_t bytes) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream)),
               "cudaMemcpyAsync");
}

Status Streams::Zero(void* stream, void* memory, size_t bytes) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  return Check(cudaMemsetAsync(memory, 0, bytes, Stream(stream)), "cudaMemsetAsync");
}

void Streams::Close() {
  const std::scoped_lock lock(mutex_);
  for (void* stream : created_) static_cast<void>(cudaStreamDestroy(Stream(stream)));
  created_.clear();
}

}  // namespace horoacc::cuda
