#pragma once
// What every call into the CUDA runtime needs. Included only by the plug-in's .cu files.
#include <string>

#include "base/result.h"
#include "execute/cuda/launch.h"

namespace horoacc::cuda {

inline Status Check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return {};
  return MakeError(ErrorKind::kSystem, std::string(call) + ": " + cudaGetErrorString(code));
}

/// The calling thread uses the device; whatever it used before, afterwards.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ == cudaSuccess && before_ != device) code_ = cudaSetDevice(device);
    restores_ = code_ == cudaSuccess && before_ != device;
  }
  ~CurrentDevice() {
    // It was current before, so there is nothing that could be wrong with it now.
    if (restores_) static_cast<void>(cudaSetDevice(before_));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  [[nodiscard]] Status status() const { return Check(code_, "cudaSetDevice"); }

 private:
  cudaError_t code_ = cudaSuccess;
  int before_ = 0;
  bool restores_ = false;
};

}  // namespace horoacc::cuda
