// Work with other processes: the CUDA runtime's inter-process calls, and the driver's stream memory
// operations.
#include <cuda.h>

#include <cstring>
#include <span>
#include <vector>

#include "execute/cuda/plugin/calls.h"
#include "execute/cuda/plugin/current_device.cuh"

namespace horoacc::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) <= sizeof(ha_cuda_handle));

// The second version of this call needs no switch of the driver's.
using BatchCall = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
constexpr const char* kBatchCall = "cuStreamBatchMemOp";
constexpr size_t kMostInBatch = 256;

BatchCall Batch() {
  static const auto call = reinterpret_cast<BatchCall>(DriverCall(kBatchCall));
  return call;
}

/// An attribute that older drivers do not know reads as 0.
int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  const Status asked = Check(cudaDeviceGetAttribute(&value, attribute, device), "");
  return asked.ok() ? value : 0;
}

/// `of` makes the operation on a word.
template <typename OperationOf>
Status CallOnWords(void* stream, std::span<void* const> words, OperationOf of) {
  if (Batch() == nullptr)
    return MakeError(ErrorKind::kUnsupported, std::string("this driver has no ") + kBatchCall);
  if (words.size() > kMostInBatch)
    return MakeError(ErrorKind::kUnsupported, std::string(kBatchCall) + " takes at most " +
                                                  std::to_string(kMostInBatch) + " words");
  std::vector<CUstreamBatchMemOpParams> operations;
  for (void* const word : words) operations.push_back(of(reinterpret_cast<CUdeviceptr>(word)));
  if (operations.empty()) return {};
  const CUresult code = Batch()(static_cast<CUstream>(stream),
                                static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (code == CUDA_SUCCESS) return {};
  return MakeError(ErrorKind::kSystem,
                   std::string(kBatchCall) + ": error " + std::to_string(static_cast<int>(code)));
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
  traits->stream_words = Batch() != nullptr;
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

Status WriteWords(void* stream, std::span<void* const> words, uint32_t value) {
  return CallOnWords(stream, words, [value](CUdeviceptr word) {
    CUstreamBatchMemOpParams operation{};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = word;
    operation.writeValue.value = value;
    operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    return operation;
  });
}

Status AwaitWords(void* stream, std::span<void* const> words, uint32_t value) {
  return CallOnWords(stream, words, [value](CUdeviceptr word) {
    CUstreamBatchMemOpParams operation{};
    operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operation.waitValue.address = word;
    operation.waitValue.value = value;
    operation.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return operation;
  });
}

}  // namespace horoacc::cuda
