// Streams, events and copies of the CUDA runtime.
#include "execute/cuda/plugin/calls.h"
#include "execute/cuda/plugin/current_device.cuh"

namespace horoacc::cuda {
namespace {

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

Status CreateEvent(void** event) {
  cudaEvent_t created = nullptr;
  HA_TRY(Check(cudaEventCreateWithFlags(&created, cudaEventDisableTiming), "cudaEventCreate"));
  *event = created;
  return {};
}

void DestroyEvent(void* event) { Forget(cudaEventDestroy(Event(event))); }

Status Record(void* event, void* stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  HA_TRY(Check(cudaStreamIsCapturing(Stream(stream), &capture), "cudaStreamIsCapturing"));
  if (capture != cudaStreamCaptureStatusNone) {
    return MakeError(ErrorKind::kUnsupported,
                     "collectives cannot be captured into a CUDA graph: the host takes part in "
                     "them; call them between graphs");
  }
  return Check(cudaEventRecord(Event(event), Stream(stream)), "cudaEventRecord");
}

Status Wait(void* stream, void* event) {
  return Check(cudaStreamWaitEvent(Stream(stream), Event(event), 0), "cudaStreamWaitEvent");
}

Status IsDone(void* event, int* done) {
  const cudaError_t code = cudaEventQuery(Event(event));
  *done = code == cudaSuccess ? 1 : 0;
  Forget(code);  // also that it is not ready, which CUDA keeps as an error, too
  return code == cudaErrorNotReady ? Status() : Check(code, "cudaEventQuery");
}

Status Copy(void* stream, void* to, const void* from, size_t bytes) {
  return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream)),
               "cudaMemcpyAsync");
}

Status Zero(void* stream, void* memory, size_t bytes) {
  return Check(cudaMemsetAsync(memory, 0, bytes, Stream(stream)), "cudaMemsetAsync");
}

}  // namespace horoacc::cuda
