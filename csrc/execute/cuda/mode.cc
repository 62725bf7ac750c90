#include "execute/cuda/mode.h"

#include <cstring>
#include <optional>

#include "execute/cuda/reduce_grid.h"

namespace horoacc::cuda {
namespace {

using Ranks = std::span<const ha_cuda_traits>;

std::string GpuOf(const ha_cuda_traits& traits) {
  return std::string(traits.bus_id, strnlen(traits.bus_id, sizeof traits.bus_id));
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
    if (std::memcmp(ranks[r].uuid, ranks[0].uuid, sizeof ranks[0].uuid) == 0) continue;
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

}  // namespace

const char* NameOf(GpuMode mode) {
  constexpr const char* kNames[] = {"auto", "cpu_reduce", "leader", "stream", "kernel"};
  return kNames[static_cast<int>(mode)];
}

bool CanReduce(DType type, ReduceOp op) {
  return !IsComplex(type) && op <= ReduceOp::kProduct && op != ReduceOp::kAdasum;
}

Result<GpuMode> ChooseMode(GpuMode wanted, Ranks ranks) {
  switch (wanted) {
    case GpuMode::kCpuReduce:
      return wanted;
    case GpuMode::kLeader:
      if (const auto why = WhyNotLeader(ranks)) return RefuseMode(wanted, *why);
      return wanted;
    case GpuMode::kStream:
      if (const auto why = WhyNotStream(ranks)) return RefuseMode(wanted, *why);
      return wanted;
    case GpuMode::kKernel:
      return RefuseMode(wanted,
                        "this version has no collective that a persistent kernel carries out");
    case GpuMode::kAuto:
      break;
  }
  if (!WhyNotLeader(ranks)) return GpuMode::kLeader;
  if (!WhyNotStream(ranks)) return GpuMode::kStream;
  return GpuMode::kCpuReduce;
}

Error RefuseMode(GpuMode wanted, const std::string& why) {
  return MakeError(ErrorKind::kConfig,
                   "setting 'gpu_mode' cannot be '" + std::string(NameOf(wanted)) + "': " + why);
}

}  // namespace horoacc::cuda
