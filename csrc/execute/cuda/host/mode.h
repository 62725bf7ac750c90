#pragma once
// The choice of the mode in which a process set reduces tensors on GPUs, from its ranks' traits.
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/settings.h"
#include "execute/cuda/cuda_plugin.h"

namespace horoacc::cuda {

[[nodiscard]] constexpr const char* NameOf(GpuMode mode) {
  return kGpuModes[static_cast<size_t>(mode)].first;
}

/// Whether GPUs of one host can reduce it at all; otherwise the CPU does, whatever the mode.
[[nodiscard]] bool CanReduce(DType type, ReduceOp op);

/// The type of the elements that GPUs reduce: a complex number is two real ones, but in a product.
[[nodiscard]] constexpr DType ReducedAs(DType type, ReduceOp op) {
  return op == ReduceOp::kProduct ? type : RealOf(type);
}

/// The mode, never kAuto, for these ranks' traits by index. A pure function, so that all ranks
/// choose alike. An error says why the `wanted` mode is impossible; kAuto never is.
[[nodiscard]] Result<GpuMode> ChooseMode(GpuMode wanted, std::span<const ha_cuda_traits> ranks);

/// The modes that kAuto may choose, the first choice first: the next ones are for when it cannot be
/// opened, or where they were measured to be faster. K needs GPUs that no other process can use.
[[nodiscard]] std::vector<GpuMode> PossibleModes(std::span<const ha_cuda_traits> ranks);

/// In mode K: how many blocks each rank's kernel may have, so that all fit on half of their GPUs.
/// 0: they do not.
[[nodiscard]] uint32_t KernelBlocks(std::span<const ha_cuda_traits> ranks);

/// The error of a mode that the setting names and that is impossible.
[[nodiscard]] Error RefuseMode(GpuMode wanted, const std::string& why);

}  // namespace horoacc::cuda
