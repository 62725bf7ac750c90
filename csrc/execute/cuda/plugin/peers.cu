// Work with other processes: the CUDA runtime's inter-process calls, and the driver's stream memory
// operations.
#include <cuda.h>

#include <cstring>

#include "execute/cuda/plugin/calls.h"
#include "execute/cuda/plugin/current_device.cuh"

namespace horoacc::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) <= sizeof(ha_cuda_handle));

using WordCall = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The second version of these calls needs no switch of the driver's.
WordCall WriteCall() {
  static const auto call = reinterpret_cast<WordCall>(DriverCall("cuStreamWriteValue32"));
  return call;
}

WordCall AwaitCall() {
  static const auto call = reinterpret_cast<WordCall>(DriverCall("cuStreamWaitValue32"));
  return call;
}

/// An attribute that older drivers do not know reads as 0.
int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  const Status asked = Check(cudaDeviceGetAttribute(&value, attribute, device), "");
  return asked.ok() ? value : 0;
}

Status CallOnWord(WordCall call, void* stream, void* word, uint32_t value, unsigned flags,
                  const char* name) {
  if (call == nullptr)
    return MakeError(ErrorKind::kUnsupported, std::string("this driver has no ") + name);
  const CUresult code =
      call(static_cast<CUstream>(stream), reinterpret_cast<CUdeviceptr>(word), value, flags);
  if (code == CUDA_SUCCESS) return {};
  return MakeError(ErrorKind::kSystem,
                   std::string(name) + ": error " + std::to_string(static_cast<int>(code)));
}

}  // namespace

Status Traits(ha_cuda_traits* traits) {
  int device = 0;
  HA_TRY(Check(cudaGetDevice(&device), "cudaGetDevice"));
  HA_TRY(Check(FindKernels(), "the kernels of this build"));
  cudaDeviceProp properties{};
  HA_TRY(Check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  static_assert(sizeof traits->uuid == sizeof properties.uuid.bytes);
  std::memcpy(traits->uuid, properties.uuid.bytes, sizeof traits->uuid);
  HA_TRY(Check(cudaDeviceGetPCIBusId(traits->bus_id, sizeof traits->bus_id, device),
               "cudaDeviceGetPCIBusId"));
  traits->shares = Attribute(cudaDevAttrUnifiedAddressing, device);
  traits->stream_words = WriteCall() != nullptr && AwaitCall() != nullptr;
  // Persistent kernels are launched so that all their blocks run at once, or not at all.
  if (Attribute(cudaDevAttrCooperativeLaunch, device) != 0)
    traits->processors = properties.multiProcessorCount;
  const int mode = Attribute(cudaDevAttrComputeMode, device);
  traits->exclusive = mode == cudaComputeModeExclusiveProcess;
#if CUDART_VERSION >= 12040
  traits->concurrent = Attribute(cudaDevAttrMpsEnabled, device);
#endif
  return {};
}

Status Allocate(size_t bytes, void** memory) {
  return Check(cudaMalloc(memory, bytes), "cudaMalloc");
}

void Deallocate(void* memory) { Forget(cudaFree(memory)); }

Status ShareMemory(void* memory, ha_cuda_handle* handle) {
  cudaIpcMemHandle_t made{};
  HA_TRY(Check(cudaIpcGetMemHandle(&made, memory), "cudaIpcGetMemHandle"));
  std::memcpy(handle->bytes, &made, sizeof made);
  return {};
}

Status OpenMemory(const ha_cuda_handle* handle, void** memory) {
  cudaIpcMemHandle_t given{};
  std::memcpy(&given, handle->bytes, sizeof given);
  return Check(cudaIpcOpenMemHandle(memory, given, cudaIpcMemLazyEnablePeerAccess),
               "cudaIpcOpenMemHandle");
}

void CloseMemory(void* memory) { Forget(cudaIpcCloseMemHandle(memory)); }

Status WriteWord(void* stream, void* word, uint32_t value) {
  return CallOnWord(WriteCall(), stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT,
                    "cuStreamWriteValue32");
}

Status AwaitWord(void* stream, void* word, uint32_t value) {
  return CallOnWord(AwaitCall(), stream, word, value, CU_STREAM_WAIT_VALUE_GEQ,
                    "cuStreamWaitValue32");
}

}  // namespace horoacc::cuda
