// The CUDA runtime's inter-process calls and the driver's stream memory operations, behind the
// plug-in's contract.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "execute/cuda/plugin/current_device.cuh"
#include "execute/cuda/plugin/find_kernels.cuh"
#include "execute/cuda/plugin/peers.h"

namespace horoacc::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) <= sizeof(ha_cuda_handle));
static_assert(sizeof(cudaIpcEventHandle_t) <= sizeof(ha_cuda_handle));

using WordCall = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

/// An attribute that older drivers do not know reads as 0.
int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess) return value;
  static_cast<void>(cudaGetLastError());
  return 0;
}

/// Left alone, an error would be reported by the next launch.
Status Settled(cudaError_t code, const char* call) {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return Check(code, call);
}

/// The GPU's address of a word in pinned memory.
Result<CUdeviceptr> AddressOf(uint32_t* word) {
  void* address = nullptr;
  HA_TRY(Settled(cudaHostGetDevicePointer(&address, word, 0), "cudaHostGetDevicePointer"));
  return reinterpret_cast<CUdeviceptr>(address);
}

Status CallOnWord(void* call, void* stream, uint32_t* word, uint32_t value, unsigned flags,
                  const char* name) {
  if (call == nullptr)
    return MakeError(ErrorKind::kUnsupported, std::string("this driver has no ") + name);
  HA_ASSIGN(const CUdeviceptr address, AddressOf(word));
  const CUresult code =
      reinterpret_cast<WordCall>(call)(static_cast<CUstream>(stream), address, value, flags);
  if (code == CUDA_SUCCESS) return {};
  return MakeError(ErrorKind::kSystem,
                   std::string(name) + ": error " + std::to_string(static_cast<int>(code)));
}

}  // namespace

// The second version of these calls needs no switch of the driver's.
Status Peers::Open() {
  write_word_ = DriverCall("cuStreamWriteValue32");
  await_word_ = DriverCall("cuStreamWaitValue32");
  return {};
}

Status Peers::Traits(ha_cuda_traits* traits) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  HA_TRY(Settled(FindKernels(), "the kernels of this build"));
  cudaDeviceProp properties{};
  HA_TRY(Settled(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties"));
  static_assert(sizeof traits->uuid == sizeof properties.uuid.bytes);
  std::memcpy(traits->uuid, properties.uuid.bytes, sizeof traits->uuid);
  HA_TRY(Settled(cudaDeviceGetPCIBusId(traits->bus_id, sizeof traits->bus_id, device_),
                 "cudaDeviceGetPCIBusId"));
  traits->shares = Attribute(cudaDevAttrUnifiedAddressing, device_) != 0 &&
                   Attribute(cudaDevAttrIpcEventSupport, device_) != 0;
  traits->stream_words = write_word_ != nullptr && await_word_ != nullptr;
  // Persistent kernels are launched so that all their blocks run at once, or not at all.
  if (Attribute(cudaDevAttrCooperativeLaunch, device_) != 0)
    traits->processors = properties.multiProcessorCount;
  const int mode = Attribute(cudaDevAttrComputeMode, device_);
  traits->exclusive = mode == cudaComputeModeExclusiveProcess;
#if CUDART_VERSION >= 12040
  traits->concurrent = Attribute(cudaDevAttrMpsEnabled, device_);
#endif
  return {};
}

Status Peers::Allocate(size_t bytes, void** memory) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  return Settled(cudaMalloc(memory, bytes), "cudaMalloc");
}

void Peers::Deallocate(void* memory) const {
  const CurrentDevice current(device_);
  if (cudaFree(memory) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

Status Peers::ShareMemory(void* memory, ha_cuda_handle* handle) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaIpcMemHandle_t made{};
  HA_TRY(Settled(cudaIpcGetMemHandle(&made, memory), "cudaIpcGetMemHandle"));
  std::memcpy(handle->bytes, &made, sizeof made);
  return {};
}

Status Peers::OpenMemory(const ha_cuda_handle& handle, void** memory) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaIpcMemHandle_t given{};
  std::memcpy(&given, handle.bytes, sizeof given);
  return Settled(cudaIpcOpenMemHandle(memory, given, cudaIpcMemLazyEnablePeerAccess),
                 "cudaIpcOpenMemHandle");
}

void Peers::CloseMemory(void* memory) const {
  const CurrentDevice current(device_);
  if (cudaIpcCloseMemHandle(memory) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

Status Peers::CreateSharedEvent(void** event, ha_cuda_handle* handle) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaEvent_t created = nullptr;
  HA_TRY(Settled(cudaEventCreateWithFlags(&created, cudaEventDisableTiming | cudaEventInterprocess),
                 "cudaEventCreateWithFlags"));
  cudaIpcEventHandle_t made{};
  const Status shared = Settled(cudaIpcGetEventHandle(&made, created), "cudaIpcGetEventHandle");
  if (!shared.ok()) {
    static_cast<void>(cudaEventDestroy(created));
    return shared;
  }
  std::memcpy(handle->bytes, &made, sizeof made);
  *event = created;
  return {};
}

Status Peers::OpenEvent(const ha_cuda_handle& handle, void** event) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaIpcEventHandle_t given{};
  std::memcpy(&given, handle.bytes, sizeof given);
  cudaEvent_t opened = nullptr;
  HA_TRY(Settled(cudaIpcOpenEventHandle(&opened, given), "cudaIpcOpenEventHandle"));
  *event = opened;
  return {};
}

Status Peers::WriteWord(void* stream, uint32_t* word, uint32_t value) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  return CallOnWord(write_word_, stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT,
                    "cuStreamWriteValue32");
}

Status Peers::AwaitWord(void* stream, uint32_t* word, uint32_t value) const {
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  return CallOnWord(await_word_, stream, word, value, CU_STREAM_WAIT_VALUE_GEQ,
                    "cuStreamWaitValue32");
}

}  // namespace horoacc::cuda
