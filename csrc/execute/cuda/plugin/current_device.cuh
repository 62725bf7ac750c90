#pragma once
// What every call into the CUDA runtime needs. Included only by the plug-in's .cu files.
#include <cuda.h>

#include <string>

#include "base/result.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {

inline Status Check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return {};
  return MakeError(ErrorKind::kSystem, std::string(call) + ": " + cudaGetErrorString(code));
}

/// A call of CUDA 12's driver; null if there is none.
inline void* DriverCall(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &answer);
#endif
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code == cudaSuccess && answer == cudaDriverEntryPointSuccess ? found : nullptr;
}

/// Whether this process has taken a device into use. To be asked while another one is current.
inline bool IsInUse(int device) {
  using StateCall = CUresult (*)(CUdevice, unsigned*, int*);
  static const auto state = reinterpret_cast<StateCall>(DriverCall("cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  return state == nullptr || state(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

/// The calling thread uses the device; whatever it used before, afterwards. Where that is a device
/// that this process has not taken into use (every thread begins with device 0), the thread stays:
/// to go back would take it into use, with memory of it, or fail where it belongs to another rank.
///
/// Meanwhile the thread does not disturb what another one captures into a graph.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ == cudaSuccess && before_ != device) code_ = cudaSetDevice(device);
    if (code_ != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // left alone, the next launch would report it
      return;
    }
    restores_ = before_ != device;
    relaxed_ = Exchange();
  }
  ~CurrentDevice() {
    if (restores_ && IsInUse(before_) && cudaSetDevice(before_) != cudaSuccess)
      static_cast<void>(cudaGetLastError());
    if (relaxed_) static_cast<void>(Exchange());
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  [[nodiscard]] Status status() const { return Check(code_, "cudaSetDevice"); }

 private:
  bool Exchange() {
    if (cudaThreadExchangeStreamCaptureMode(&capture_) == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());
    return false;
  }

  cudaError_t code_ = cudaSuccess;
  int before_ = 0;
  bool restores_ = false;
  bool relaxed_ = false;
  cudaStreamCaptureMode capture_ = cudaStreamCaptureModeRelaxed;  ///< the other one: see Exchange
};

}  // namespace horoacc::cuda
