#pragma once
// Where a call's tensors lie, as the core wants to know it.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>

#include "api/horoacc.h"

namespace horoacc {

/// The calling thread's stream of the GPU that has the tensor. None: it is in the host's memory.
[[nodiscard]] std::optional<c10::Stream> StreamOf(const at::Tensor& tensor);

[[nodiscard]] ha_gpu GpuOf(const c10::Stream& stream);

}  // namespace horoacc
