#pragma once
// One call of a persistent kernel's program on the current device. Included only by the plug-in's
// .cu files.
#include "base/result.h"
#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/plugin/launch.h"

namespace horoacc::cuda {

/// What `program` means, and when nothing is launched: cuda_plugin.h.
[[nodiscard]] Status LaunchProgram(const ha_cuda_program& program, const Place& place);

}  // namespace horoacc::cuda
