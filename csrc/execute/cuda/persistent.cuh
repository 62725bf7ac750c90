#pragma once
// A program on a GPU, with the memory of its ranks. Included only by the plug-in's .cu files.
#include <atomic>
#include <string>
#include <vector>

#include "base/result.h"
#include "execute/cuda/cuda_kernels.h"
#include "execute/cuda/current_device.cuh"
#include "execute/cuda/kernel_launch.cuh"

namespace horoacc::cuda {

/// A rank's memory is one allocation, alike on all ranks: flags, slots and scratch, and behind them
/// the input and the output of a rank in a process.
class Persistent {
 public:
  /// `rank` < 0: all are here.
  Persistent(int device, int rank) : device_(device), rank_(rank) {}
  ~Persistent();
  Persistent(const Persistent&) = delete;
  Persistent& operator=(const Persistent&) = delete;

  [[nodiscard]] Status Open(const void* program, size_t bytes);
  [[nodiscard]] Status Export(ha_cuda_kernel_memory* memory) const;
  [[nodiscard]] Status Import(const ha_cuda_kernel_memory* memories);
  [[nodiscard]] Status Buffers(void** input, void** output) const;
  [[nodiscard]] Status Launch(cudaStream_t stream, const void* const* inputs, void* const* outputs,
                              double seconds);
  void Abort();
  [[nodiscard]] Status Outcome() const;

 private:
  [[nodiscard]] bool virtual_ranks() const { return rank_ < 0; }
  [[nodiscard]] uint64_t input_offset() const;
  [[nodiscard]] uint64_t output_offset() const;
  [[nodiscard]] uint64_t bytes_of_rank() const;
  [[nodiscard]] Status SetAddresses(const void* const* inputs, void* const* outputs);

  const int device_, rank_;
  uint32_t processors_ = 1;
  KernelLaunch launch_{};
  char* program_ = nullptr;
  char* memory_ = nullptr;
  unsigned long long* report_ = nullptr;
  uint32_t* abort_ = nullptr;  ///< the host's; written by both
  bool connected_ = false;     ///< every rank's memory is known
  std::vector<void*> opened_;  ///< memory of other processes
};

}  // namespace horoacc::cuda
