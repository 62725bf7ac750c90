#pragma once
// Error checks, and the calling thread's current device. Included only by the plug-in's .cu files.
#include <cuda.h>

#include <string>

#include "base/result.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {

/// For an error's text: "CUDA 12.8".
inline std::string NameOfVersion(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Clears the error, which another library on this thread would take for that of its own call.
inline Status Check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  std::string what = std::string(call) + ": " + cudaGetErrorString(code);
  int driver = 0;
  if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess) {
    what += ": this plug-in was built with " + NameOfVersion(CUDART_VERSION) +
            ", and the driver is " +
            (driver == 0 ? "not there" : "that of " + NameOfVersion(driver)) +
            "; docs/gpu.md says how to build one for it";
  }
  return MakeError(ErrorKind::kSystem, std::move(what));
}

/// The outcome of a call that gives something back: an earlier call has reported the error of a
/// device that fails here. Clears it, as above.
inline void Forget(cudaError_t code) {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
}

/// A function of CUDA 12's driver; null if this driver has none of that name.
inline void* DriverCall(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &answer);
#endif
  Forget(code);
  return code == cudaSuccess && answer == cudaDriverEntryPointSuccess ? found : nullptr;
}

/// Whether this process has a primary context on `device`, which must not be the current one.
inline bool IsInUse(int device) {
  using StateCall = CUresult (*)(CUdevice, unsigned*, int*);
  static const auto state = reinterpret_cast<StateCall>(DriverCall("cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  return state == nullptr || state(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

/// Makes a device the calling thread's current one, and restores the former one at the end. Every
/// thread begins with device 0, on which this process may have no context: the destructor does not
/// restore that, since it would create the context, or fail where the GPU is another rank's.
///
/// Meanwhile calls of this thread do not disturb a graph capture of another thread.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ == cudaSuccess && before_ != device) code_ = cudaSetDevice(device);
    Forget(code_);
    if (code_ != cudaSuccess) return;
    restores_ = before_ != device;
    relaxed_ = Exchange();
  }
  ~CurrentDevice() {
    if (restores_ && IsInUse(before_)) Forget(cudaSetDevice(before_));
    if (relaxed_) static_cast<void>(Exchange());
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  /// An error: the device is not the current one.
  [[nodiscard]] Status status() const { return Check(code_, "cudaSetDevice"); }

 private:
  bool Exchange() {
    const cudaError_t code = cudaThreadExchangeStreamCaptureMode(&capture_);
    Forget(code);
    return code == cudaSuccess;
  }

  cudaError_t code_ = cudaSuccess;
  int before_ = 0;
  bool restores_ = false;
  bool relaxed_ = false;
  cudaStreamCaptureMode capture_ = cudaStreamCaptureModeRelaxed;  ///< the other one: see Exchange
};

}  // namespace horoacc::cuda
