// The calls of CUDA's runtime on streams and events, and those of the driver.
#include <cuda.h>

#include <cstring>

#include "mock_cuda/mock_kernels.h"
#include "mock_cuda/mock_world.h"

using namespace horoacc::mock;

namespace {

constexpr int kGreatest = -5;
constexpr int kBlocksOnProcessor = 3;

Event& OnSameDevice(cudaEvent_t event, const Stream& stream) {
  Event& found = EventOf(event);
  if (found.device != stream.device) Forbid("an event and a stream of different GPUs");
  return found;
}

// What is put on a stream while it is captured becomes part of somebody's graph.
Stream& Uncaptured(cudaStream_t handle) {
  Stream& stream = StreamOf(handle);
  if (stream.captured) Forbid("work on a stream that is being captured");
  if (stream.is_default && CapturesOn(stream.device)) {
    TheWorld().capture_holds = false;
    Forbid("work on the default stream while one that it waits for is being captured");
  }
  return stream;
}

Event& Recorded(cudaEvent_t event) {
  Event& found = EventOf(event);
  if (found.done == nullptr) Forbid("an event that was not recorded");
  return found;
}

/// How a copy reaches an address: as the GPU's memory, as pinned or as any other of the host.
struct Side {
  char* real;
  bool is_pinned;
};
Side SideOf(const void* address, size_t bytes) {
  if (const Range* const range = RangeOf(address, bytes))
    return {static_cast<char*>(BytesAt(address)), range->kind != Kind::kRegistered};
  auto* const host = static_cast<char*>(const_cast<void*>(address));
  for (const Range& range : TheWorld().ranges) {
    if (range.kind != Kind::kHost && range.kind != Kind::kRegistered) continue;
    if (host < range.real + range.bytes && range.real < host + bytes) {
      if (host < range.real || host + bytes > range.real + range.bytes)
        Forbid("a copy that is pinned in part");
      return {host, true};
    }
  }
  return {host, false};
}

void CheckWord(CUdeviceptr address) {
  const Range* const range = RangeOf(reinterpret_cast<const void*>(address), sizeof(uint32_t));
  if (address % sizeof(uint32_t) != 0 || range == nullptr || range->kind == Kind::kHost)
    Forbid("a word that the GPU does not reach");
}

uint32_t* Word(CUdeviceptr address) {
  return static_cast<uint32_t*>(BytesAt(reinterpret_cast<const void*>(address)));
}

// The driver's calls do not touch the runtime's last error.
CUresult BeginInDriver(const char* name) {
  const cudaError_t before = LastError();
  const cudaError_t code = Begin(name);
  SetLastError(before);
  return code == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

void Write(Stream& stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  // Any other flag leaves out that earlier writes are visible before the word is.
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) Forbid("a word that is written without a fence");
  CheckWord(address);
  stream.work.push_back({{}, [address, value] { *Word(address) = value; }});
}

void Await(Stream& stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) Forbid("a wait that not all devices have");
  CheckWord(address);
  if (stream.blocking) Forbid("a stream of the caller's that waits for another rank");
  stream.work.push_back(
      {[address, value] { return static_cast<int32_t>(*Word(address) - value) >= 0; }, {}});
}

CUresult Batch(CUstream handle, unsigned count, CUstreamBatchMemOpParams* operations,
               unsigned flags) {
  if (const CUresult code = BeginInDriver("cuStreamBatchMemOp"); code != CUDA_SUCCESS) return code;
  if (count == 0 || count > 256 || flags != 0) Forbid("a batch of no or too many words");
  Stream& stream = Uncaptured(handle);
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& one = operations[i];
    const auto& write = one.writeValue;
    const auto& wait = one.waitValue;
    if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
      Write(stream, write.address, write.value, write.flags);
    } else if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
      Await(stream, wait.address, wait.value, wait.flags);
    } else {
      Forbid("an operation on something else than a word");
    }
  }
  return CUDA_SUCCESS;
}

CUresult ContextState(CUdevice device, unsigned* flags, int* active) {
  if (const CUresult code = BeginInDriver("cuDevicePrimaryCtxGetState"); code != CUDA_SUCCESS)
    return code;
  *flags = 0;
  *active = HasContext(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

cudaError_t FindDriverCall(const char* name, void** call, cudaDriverEntryPointQueryResult* answer) {
  struct Known {
    const char* name;
    void* call;
  };
  const Known known[] = {{"cuStreamBatchMemOp", reinterpret_cast<void*>(Batch)},
                         {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(ContextState)}};
  *call = nullptr;
  *answer = cudaDriverEntryPointSymbolNotFound;
  for (const Known& one : known) {
    if (std::strcmp(one.name, name) != 0 || TheWorld().hidden.contains(name)) continue;
    *call = one.call;
    *answer = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = kGreatest;
  return Begin("cudaDeviceGetStreamPriorityRange");
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (const cudaError_t code = Begin("cudaStreamCreateWithPriority"); code != cudaSuccess)
    return code;
  if (flags != cudaStreamNonBlocking || priority != kGreatest)
    Forbid("a stream that waits for the default one, or is of a low priority");
  *stream = HandleOf(TheWorld().streams.emplace_back(Stream{Current(), false, false, {}}));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Stream& known = StreamOf(stream);
  if (known.blocking) Forbid("a stream of the caller's is destroyed");
  TheWorld().streams.remove_if([&known](const Stream& one) { return &one == &known; });
  return Begin("cudaStreamDestroy");
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  if (const cudaError_t code = Begin("cudaStreamIsCapturing"); code != cudaSuccess) return code;
  const Stream& stream = StreamOf(handle);
  if (stream.is_default && CapturesOn(stream.device)) return Failed(cudaErrorStreamCaptureImplicit);
  *status = stream.captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  if (const cudaError_t code = Begin("cudaStreamWaitEvent"); code != cudaSuccess) return code;
  if (flags != 0) Forbid("a wait of a capture");
  Uncaptured(handle).work.push_back({[done = Recorded(event).done] { return *done; }, {}});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t code = Begin("cudaEventCreateWithFlags"); code != cudaSuccess) return code;
  if (flags != cudaEventDisableTiming) Forbid("an event that measures, or that others open");
  *event = reinterpret_cast<cudaEvent_t>(&TheWorld().events.emplace_back(Event{Current(), {}}));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Event& known = EventOf(event);
  TheWorld().events.remove_if([&known](const Event& one) { return &one == &known; });
  return Begin("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  if (const cudaError_t code = Begin("cudaEventRecord"); code != cudaSuccess) return code;
  Stream& stream = Uncaptured(handle);
  const auto done = std::make_shared<bool>(false);
  OnSameDevice(event, stream).done = done;
  stream.work.push_back({{}, [done] { *done = true; }});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t code = Begin("cudaEventQuery", InCapture::kUnsafe); code != cudaSuccess)
    return code;
  return *Recorded(event).done ? cudaSuccess : Failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t code = Begin("cudaEventSynchronize", InCapture::kUnsafe);
      code != cudaSuccess)
    return code;
  RunStreams();
  if (!*Recorded(event).done) Forbid("a wait for an event behind a wait for another rank");
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t handle) {
  if (const cudaError_t code = Begin("cudaMemcpyAsync"); code != cudaSuccess) return code;
  Stream& stream = Uncaptured(handle);
  const Side target = SideOf(to, bytes);
  const Side source = SideOf(from, bytes);
  if (target.is_pinned && source.is_pinned) {
    stream.work.push_back({{}, [=] { std::memcpy(target.real, source.real, bytes); }});
    return cudaSuccess;
  }
  // Memory that is not pinned may be free again when the call returns.
  const std::vector<char> staged(source.real, source.real + bytes);
  stream.work.push_back({{}, [=, staged = source.is_pinned ? std::vector<char>() : staged] {
                           std::memcpy(target.real, staged.empty() ? source.real : staged.data(),
                                       bytes);
                         }});
  if (!target.is_pinned) RunStreams();
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t handle) {
  if (const cudaError_t code = Begin("cudaMemsetAsync"); code != cudaSuccess) return code;
  if (RangeOf(memory, bytes) == nullptr) Forbid("a memset of what is no GPU's");
  void* const real = BytesAt(memory);
  Uncaptured(handle).work.push_back({{}, [=] { std::memset(real, value, bytes); }});
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t shared) {
  if (const cudaError_t code = Begin("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
      code != cudaSuccess)
    return code;
  if (!IsKernel(kernel) || threads != 256 || shared != 0) Forbid("the occupancy of no kernel");
  *blocks = kBlocksOnProcessor;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                             size_t shared, cudaStream_t handle) {
  if (const cudaError_t code = Begin("cudaLaunchKernel"); code != cudaSuccess) return code;
  Stream& stream = Uncaptured(handle);
  if (stream.device != Current()) Forbid("a launch on another GPU's stream");
  if (!IsKernel(kernel) || shared != 0 || threads.x != 256 || blocks.x == 0) Forbid("no launch");
  stream.work.push_back({{}, KernelOf(kernel, arguments, blocks.x)});
  return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** call, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* answer) {
  if (const cudaError_t code = Begin("cudaGetDriverEntryPointByVersion"); code != cudaSuccess)
    return code;
  if (version != 12000 || flags != cudaEnableDefault) Forbid("a call that no driver of 12.0 has");
  return FindDriverCall(name, call, answer);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char* name, void** call, unsigned long long,
                                    cudaDriverEntryPointQueryResult* answer) {
  if (const cudaError_t code = Begin("cudaGetDriverEntryPoint"); code != cudaSuccess) return code;
  return FindDriverCall(name, call, answer);
}
#endif

}  // extern "C"
