// The calls of CUDA's runtime that the plug-in makes, but those on streams (mock_streams.cc).
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "mock_cuda/mock_world.h"

using namespace horoacc::mock;

namespace {

constexpr size_t kPage = 4096;
constexpr int kProcessors = 4;

// Work with a device makes a context of it.
cudaError_t BeginOnDevice(const char* name, InCapture safety = InCapture::kUnsafe) {
  const cudaError_t code = Begin(name, safety);
  if (code == cudaSuccess) TheWorld().context[Current()] = true;
  return code;
}

cudaError_t CheckDevice(int device) {
  return device >= 0 && device < kDevices ? cudaSuccess : Failed(cudaErrorInvalidDevice);
}

bool IsBase(const Range* range, const void* address, Kind kind) {
  return range != nullptr && range->address == address && range->kind == kind;
}

void Release(void* memory, Kind kind, const char* call) {
  Range* const range = RangeOf(memory, 1);
  if (!IsBase(range, memory, kind)) Forbid(std::string(call) + " of what it does not release");
  WaitForDevice(range->device, call);
  Remove(range);
}

Range* RegisteredAt(const void* host) {
  for (Range& range : TheWorld().ranges) {
    if (range.kind == Kind::kRegistered && range.real == host) return &range;
  }
  return nullptr;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(TheThread().last, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t code) {
  if (code == cudaErrorMemoryAllocation) return "out of memory (mock)";
  return code == cudaErrorStreamCaptureUnsupported ? "not permitted in a capture (mock)"
                                                   : "some error (mock)";
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12000;
  return Begin("cudaDriverGetVersion");
}

cudaError_t cudaGetDevice(int* device) {
  *device = Current();
  return Begin("cudaGetDevice");
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t code = Begin("cudaSetDevice"); code != cudaSuccess) return code;
  if (const cudaError_t code = CheckDevice(device); code != cudaSuccess) return code;
  MakeCurrent(device);
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (const cudaError_t code = Begin("cudaThreadExchangeStreamCaptureMode"); code != cudaSuccess)
    return code;
  std::swap(*mode, TheThread().mode);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t code = Begin("cudaDeviceGetAttribute"); code != cudaSuccess) return code;
  if (const cudaError_t code = CheckDevice(device); code != cudaSuccess) return code;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      return cudaSuccess;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCooperativeLaunch:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeExclusiveProcess;
      return cudaSuccess;
    default:  // as of a driver that does not know it
      return Failed(cudaErrorInvalidValue);
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t code = Begin("cudaGetDeviceProperties"); code != cudaSuccess) return code;
  if (const cudaError_t code = CheckDevice(device); code != cudaSuccess) return code;
  *properties = {};
  properties->multiProcessorCount = kProcessors;
  std::memset(properties->uuid.bytes, 'a' + device, sizeof properties->uuid.bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  if (const cudaError_t code = Begin("cudaDeviceGetPCIBusId"); code != cudaSuccess) return code;
  if (const cudaError_t code = CheckDevice(device); code != cudaSuccess) return code;
  const std::string text = "0000:0" + std::to_string(device) + ":00.0";
  if (static_cast<int>(text.size()) >= bytes) return Failed(cudaErrorInvalidValue);
  std::memcpy(id, text.c_str(), text.size() + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t code = BeginOnDevice("cudaDeviceSynchronize"); code != cudaSuccess)
    return code;
  WaitForDevice(Current(), "cudaDeviceSynchronize");
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t code = BeginOnDevice("cudaMalloc"); code != cudaSuccess) return code;
  char* const address = Reserve(bytes);
  TheWorld().ranges.push_back(
      {Kind::kOwn, address, bytes, static_cast<char*>(std::calloc(bytes, 1)), Current()});
  *memory = address;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory != nullptr) Release(memory, Kind::kOwn, "cudaFree");
  return Begin("cudaFree", InCapture::kUnsafe);
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  if (const cudaError_t code = BeginOnDevice("cudaMallocHost"); code != cudaSuccess) return code;
  auto* const real = static_cast<char*>(std::calloc(bytes, 1));
  TheWorld().ranges.push_back({Kind::kHost, real, bytes, real, Current()});
  *memory = real;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  if (memory != nullptr) Release(memory, Kind::kHost, "cudaFreeHost");
  return Begin("cudaFreeHost", InCapture::kUnsafe);
}

// Every device and its streams and kernels are to reach it.
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  if (const cudaError_t code = BeginOnDevice("cudaHostRegister"); code != cudaSuccess) return code;
  if (flags != (cudaHostRegisterPortable | cudaHostRegisterMapped))
    Forbid("memory that not all devices reach");
  if (reinterpret_cast<uintptr_t>(memory) % kPage != 0 || bytes % kPage != 0 || bytes == 0)
    Forbid("a registration of parts of pages");
  auto* const begin = static_cast<char*>(memory);
  for (const Range& range : TheWorld().ranges) {
    if (range.kind != Kind::kRegistered) continue;
    if (begin < range.real + range.bytes && range.real < begin + bytes)
      return Failed(cudaErrorHostMemoryAlreadyRegistered);
  }
  TheWorld().ranges.push_back({Kind::kRegistered, Reserve(bytes), bytes, begin, Current()});
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  Range* const range = RegisteredAt(memory);
  if (range == nullptr) Forbid("an end of a registration that there is not");
  WaitForDevice(range->device, "cudaHostUnregister");
  Remove(range);
  return Begin("cudaHostUnregister", InCapture::kUnsafe);
}

// CUDA promises nothing about addresses inside a range.
cudaError_t cudaHostGetDevicePointer(void** address, void* memory, unsigned flags) {
  if (const cudaError_t code = BeginOnDevice("cudaHostGetDevicePointer", InCapture::kSafe);
      code != cudaSuccess)
    return code;
  const Range* const range = RegisteredAt(memory);
  if (flags != 0 || range == nullptr) Forbid("a GPU's address of what is not a range's beginning");
  *address = range->address;
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  if (const cudaError_t code = BeginOnDevice("cudaIpcGetMemHandle"); code != cudaSuccess)
    return code;
  const Range* const range = RangeOf(memory, 1);
  if (!IsBase(range, memory, Kind::kOwn)) Forbid("a handle of what is no allocation of its own");
  *handle = {};
  std::memcpy(handle->reserved, &range->address, sizeof range->address);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags) {
  if (const cudaError_t code = BeginOnDevice("cudaIpcOpenMemHandle"); code != cudaSuccess)
    return code;
  if (flags != cudaIpcMemLazyEnablePeerAccess) Forbid("memory that other GPUs do not reach");
  uint64_t number = 0;
  std::memcpy(&number, handle.reserved, sizeof number);
  const auto given = TheWorld().foreign.find(number);
  // A process cannot open what is its own.
  if (given == TheWorld().foreign.end()) return Failed(cudaErrorDeviceUninitialized);
  char* const address = Reserve(given->second);
  TheWorld().ranges.push_back({Kind::kForeign, address, given->second,
                               static_cast<char*>(std::calloc(given->second, 1)), Current()});
  *memory = address;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* memory) {
  Release(memory, Kind::kForeign, "cudaIpcCloseMemHandle");
  return Begin("cudaIpcCloseMemHandle", InCapture::kUnsafe);
}

}  // extern "C"
