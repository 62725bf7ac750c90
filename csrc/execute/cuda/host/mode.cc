#include "execute/cuda/host/mode.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "execute/cuda/kernels/reduce_grid.h"
#include "execute/kernels/reduce.h"

namespace horoacc::cuda {
namespace {

using Ranks = std::span<const ha_cuda_traits>;

std::string GpuOf(const ha_cuda_traits& traits) {
  return std::string(traits.bus_id, strnlen(traits.bus_id, sizeof traits.bus_id));
}

bool ShareGpu(const ha_cuda_traits& one, const ha_cuda_traits& other) {
  return std::memcmp(one.uuid, other.uuid, sizeof one.uuid) == 0;
}

std::optional<std::string> TooMany(Ranks ranks) {
  if (ranks.size() <= kMostSources) return std::nullopt;
  return "there are " + std::to_string(ranks.size()) + " ranks, and the kernels take " +
         std::to_string(kMostSources);
}

// A rank alone shares nothing.
std::optional<std::string> CannotShare(Ranks ranks) {
  for (size_t r = 0; r < ranks.size() && ranks.size() > 1; ++r) {
    if (ranks[r].shares == 0)
      return "other processes cannot open memory of the GPU of rank " + std::to_string(r) +
             " of the process set";
  }
  return std::nullopt;
}

std::optional<std::string> WhyNotLeader(Ranks ranks) {
  for (size_t r = 1; r < ranks.size(); ++r) {
    if (ShareGpu(ranks[r], ranks[0])) continue;
    return "ranks 0 and " + std::to_string(r) + " of the process set have different GPUs (" +
           GpuOf(ranks[0]) + " and " + GpuOf(ranks[r]) + ")";
  }
  if (auto many = TooMany(ranks)) return many;
  return CannotShare(ranks);
}

std::optional<std::string> WhyNotStream(Ranks ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].stream_words == 0)
      return "the GPU of rank " + std::to_string(r) +
             " of the process set has no memory operations on streams";
  }
  if (auto many = TooMany(ranks)) return many;
  return CannotShare(ranks);
}

// Blocks that wait for each other must all be on their GPUs at once.
std::optional<std::string> WhyNotKernel(Ranks ranks) {
  for (size_t a = 0; a < ranks.size(); ++a) {
    if (ranks[a].processors == 0) {
      return "the GPU of rank " + std::to_string(a) +
             " of the process set cannot promise that all blocks of a kernel run at once";
    }
    for (size_t b = 0; b < a; ++b) {
      if (!ShareGpu(ranks[a], ranks[b]) || (ranks[a].concurrent && ranks[b].concurrent)) continue;
      return "ranks " + std::to_string(b) + " and " + std::to_string(a) +
             " of the process set share a GPU (" + GpuOf(ranks[a]) +
             "), where kernels of two processes never run at once without MPS";
    }
  }
  if (KernelBlocks(ranks) == 0) return "a GPU has fewer processors than their kernels need";
  if (auto many = TooMany(ranks)) return many;
  return CannotShare(ranks);
}

// A mode, and why ranks cannot have it. NCCL says so itself.
using WhyNot = std::optional<std::string> (*)(Ranks);
std::optional<std::string> NoReason(Ranks) { return std::nullopt; }
WhyNot WhyNotOf(GpuMode mode) {
  switch (mode) {
    case GpuMode::kLeader:
      return WhyNotLeader;
    case GpuMode::kStream:
      return WhyNotStream;
    case GpuMode::kKernel:
      return WhyNotKernel;
    default:
      return NoReason;
  }
}

}  // namespace

uint32_t KernelBlocks(Ranks ranks) {
  constexpr uint32_t kMost = 32;  // enough for the links of one rank
  uint32_t blocks = kMost;
  for (const ha_cuda_traits& rank : ranks) {
    const auto here = std::ranges::count_if(
        ranks, [&](const ha_cuda_traits& other) { return ShareGpu(rank, other); });
    // As many are left for other work on the GPU.
    blocks = std::min(blocks, static_cast<uint32_t>(rank.processors / (2 * here)));
  }
  return blocks;
}

bool CanReduce(DType type, ReduceOp op) {
  return op <= ReduceOp::kProduct && CheckReducible(type, op).ok();
}

Result<GpuMode> ChooseMode(GpuMode wanted, Ranks ranks) {
  if (wanted == GpuMode::kAuto) {
    const std::vector<GpuMode> possible = PossibleModes(ranks);
    return possible.empty() ? GpuMode::kCpuReduce : possible.front();
  }
  if (const auto why = WhyNotOf(wanted)(ranks)) return RefuseMode(wanted, *why);
  return wanted;
}

std::vector<GpuMode> PossibleModes(Ranks ranks) {
  const bool exclusive =
      std::ranges::all_of(ranks, [](const auto& rank) { return rank.exclusive; });
  std::vector<GpuMode> modes;
  for (const GpuMode mode : {GpuMode::kLeader, GpuMode::kKernel, GpuMode::kStream}) {
    if (!WhyNotOf(mode)(ranks) && (exclusive || mode != GpuMode::kKernel)) modes.push_back(mode);
  }
  return modes;
}

Error RefuseMode(GpuMode wanted, const std::string& why) {
  return MakeError(ErrorKind::kConfig,
                   "setting 'gpu_mode' cannot be '" + std::string(NameOf(wanted)) + "': " + why);
}

}  // namespace horoacc::cuda
