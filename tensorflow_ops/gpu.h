#pragma once
// Tensors in a GPU's memory: on which stream they are ready, and how results get there.
#include <functional>
#include <vector>

#include "api/horoacc.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace horoacc {

/// Where a kernel of a GPU works: the GPU's number in this process and its stream. An error if the
/// device has no stream of CUDA's, as a plug-in's.
absl::Status FindGpu(tensorflow::OpKernelContext* context, ha_gpu* gpu);

/// A result in the host's memory that an output on the GPU is to have.
struct Upload {
  tensorflow::Tensor from;
  tensorflow::Tensor* to;
};

/// Copies them as TensorFlow copies, and calls `then` once they have arrived, on any thread.
void StartUploads(tensorflow::OpKernelContext* context, std::vector<Upload> uploads,
                  std::function<void(const absl::Status&)> then);

}  // namespace horoacc
