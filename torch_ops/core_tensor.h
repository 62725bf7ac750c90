#pragma once
// A tensor's type, and its stream, in the core's terms.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>

#include "api/horoacc.h"

namespace horoacc {

/// The calling thread's stream of the tensor's GPU. None: the tensor is in the host's memory.
[[nodiscard]] std::optional<c10::Stream> StreamOf(const at::Tensor& tensor);

/// CUDA's, of a stream of a GPU.
[[nodiscard]] void* HandleOf(const c10::Stream& stream);
[[nodiscard]] ha_gpu GpuOf(const c10::Stream& stream);

/// The ha_dtype; -1 for a type that the core does not reduce.
[[nodiscard]] int32_t CoreType(at::ScalarType type);

/// The core's view of an element that it moves without computing.
struct Moved {
  int32_t dtype;
  int64_t units;  ///< of dtype, in an element
};
[[nodiscard]] Moved MovedAs(at::ScalarType type);

/// A new tensor of a part of a complete call's result that the engine allocated, from byte `first`
/// on, on the device of `options`. If that is a GPU, its current stream has joined the handle.
[[nodiscard]] at::Tensor PartOf(ha_engine* engine, ha_handle handle, size_t member, size_t first,
                                at::IntArrayRef shape, const at::TensorOptions& options);

}  // namespace horoacc
