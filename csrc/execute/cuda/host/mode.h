#pragma once
// Who reduces what lies on GPUs: the choice, from what all ranks of a process set have told.
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/settings.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

/// A mode of the setting `gpu_mode`, as it is written there.
[[nodiscard]] const char* NameOf(GpuMode mode);

/// Whether GPUs can reduce it at all; else the CPU does, whatever the mode.
[[nodiscard]] bool CanReduce(DType type, ReduceOp op);

/// By index of the ranks that take part: the mode, never kAuto. Pure, so that all of them choose
/// alike. An error says why what is `wanted` is impossible; kAuto never is.
[[nodiscard]] Result<GpuMode> ChooseMode(GpuMode wanted, std::span<const ha_cuda_traits> ranks);

/// What kAuto may take instead of the mode that it has chosen, if it was measured to be faster.
[[nodiscard]] std::vector<GpuMode> OtherModes(GpuMode chosen,
                                              std::span<const ha_cuda_traits> ranks);

/// In mode K: how many blocks each rank's kernel may have, so that all fit beside as many others.
/// 0: they do not.
[[nodiscard]] uint32_t KernelBlocks(std::span<const ha_cuda_traits> ranks);

/// The error of a mode that was ordered and is impossible.
[[nodiscard]] Error RefuseMode(GpuMode wanted, const std::string& why);

}  // namespace horoacc::cuda
