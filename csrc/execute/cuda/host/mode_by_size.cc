#include "execute/cuda/host/mode_by_size.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace horoacc::cuda {
namespace {

std::optional<double> SecondsAt(const std::vector<schedule::MeasuredTable::Point>& points,
                                uint64_t bytes) {
  const auto found = std::ranges::find(points, bytes, &schedule::MeasuredTable::Point::bytes);
  if (found == points.end()) return std::nullopt;
  return found->seconds;
}

}  // namespace

std::string MeasuredName(GpuMode mode) { return std::string("gpu_") + NameOf(mode); }

std::vector<uint32_t> RanksOfGpus(std::span<const ha_cuda_traits> ranks) {
  std::vector<const ha_cuda_traits*> gpus;
  std::vector<uint32_t> counts;
  for (const ha_cuda_traits& rank : ranks) {
    const auto found = std::ranges::find_if(gpus, [&](const ha_cuda_traits* gpu) {
      return std::memcmp(gpu->uuid, rank.uuid, sizeof rank.uuid) == 0;
    });
    if (found == gpus.end()) {
      gpus.push_back(&rank);
      counts.push_back(1);
    } else {
      ++counts[static_cast<size_t>(found - gpus.begin())];
    }
  }
  return counts;
}

// Sizes between two measured ones take the mode of the nearer one, on a logarithmic scale.
ModeBySize::ModeBySize(GpuMode usual, std::span<const GpuMode> others,
                       const schedule::MeasuredTable& table,
                       std::span<const uint32_t> ranks_of_gpus)
    : usual_(usual) {
  const std::vector<uint32_t> shape(ranks_of_gpus.begin(), ranks_of_gpus.end());
  uint64_t before = 0;
  for (const auto& [bytes, seconds] : table.Of(MeasuredName(usual), shape)) {
    double least = seconds;
    GpuMode mode = usual;
    for (const GpuMode other : others) {
      const auto took = SecondsAt(table.Of(MeasuredName(other), shape), bytes);
      if (!took || *took >= least) continue;
      least = *took;
      mode = other;
    }
    const double middle = std::sqrt(static_cast<double>(before) * static_cast<double>(bytes));
    from_.push_back({static_cast<uint64_t>(middle), mode});
    before = bytes;
  }
}

GpuMode ModeBySize::For(uint64_t bytes) const {
  GpuMode mode = usual_;
  for (const From& from : from_) {
    if (from.bytes <= bytes) mode = from.mode;
  }
  return mode;
}

bool ModeBySize::Has(GpuMode mode) const {
  return mode == usual_ || std::ranges::find(from_, mode, &From::mode) != from_.end();
}

void ModeBySize::Drop(GpuMode mode) {
  for (From& from : from_) {
    if (from.mode == mode) from.mode = usual_;
  }
}

}  // namespace horoacc::cuda
