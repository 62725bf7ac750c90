#pragma once
// Tensors in a GPU's memory: their stream, and copies of results to the GPU.
#include <functional>
#include <vector>

#include "api/horoacc.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace horoacc {

/// The GPU of a kernel: its number in this process and its stream. An error if the device has no
/// CUDA stream, as those of plug-ins.
absl::Status FindGpu(tensorflow::OpKernelContext* context, ha_gpu* gpu);

/// A result in the host's memory, for an output on the GPU.
struct Upload {
  tensorflow::Tensor from;
  tensorflow::Tensor* to;
};

/// Copies them as TensorFlow copies, and calls `then` once they have arrived, on any thread.
void StartUploads(tensorflow::OpKernelContext* context, std::vector<Upload> uploads,
                  std::function<void(const absl::Status&)> then);

}  // namespace horoacc
