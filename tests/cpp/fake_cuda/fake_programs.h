#pragma once
// Persistent kernels of the fake GPU.
#include <memory>

#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/persistent/kernel_program.h"

namespace horoacc::testing {

/// A call whose memory is the host's.
struct FakeProgram {
  std::shared_ptr<std::byte[]> image;
  cuda::KernelCall call{};
  int rank = 0;
  ha_cuda_watch* watch = nullptr;
};

/// Runs a launch, with a thread for each block.
void RunProgram(const FakeProgram& program);

}  // namespace horoacc::testing
