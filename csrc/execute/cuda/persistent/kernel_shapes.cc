#include "execute/cuda/persistent/kernel_shapes.h"

#include <algorithm>
#include <string>

#include "execute/cuda/persistent/direct_lane.h"

namespace horoacc::cuda {

using schedule::Goal;

namespace {

/// The chunks of every rank's input and output, for goals with a shard for each rank.
class Shards {
 public:
  Shards(Goal goal, uint32_t ranks, const std::vector<uint64_t>& sizes, uint64_t unit)
      : goal_(goal), ranks_(ranks), sizes_(sizes), unit_(unit) {}

  /// Elements that one rank sends to another.
  [[nodiscard]] uint64_t Length(uint32_t from, uint32_t to) const {
    if (goal_ == Goal::kAllToAll) return sizes_[static_cast<size_t>(from) * ranks_ + to] * unit_;
    return sizes_[goal_ == Goal::kAllGather ? from : to] * unit_;
  }
  /// If the goal gives a buffer one shard only, that is the whole buffer.
  [[nodiscard]] KernelPart Input(uint32_t rank, uint32_t chunk) const {
    if (goal_ == Goal::kAllGather) return {0, Length(chunk, rank)};
    uint64_t first = 0;
    for (uint32_t k = 0; k < chunk; ++k) first += Length(rank, k);
    return {first, Length(rank, chunk)};
  }
  [[nodiscard]] KernelPart Output(uint32_t rank, uint32_t chunk) const {
    if (goal_ == Goal::kReduceScatter) return {0, Length(rank, chunk)};
    uint64_t first = 0;
    for (uint32_t k = 0; k < chunk; ++k) first += Length(k, rank);
    return {first, Length(chunk, rank)};
  }
  /// Elements of a rank's whole input and output.
  [[nodiscard]] uint64_t InputOf(uint32_t rank) const {
    const KernelPart last = Input(rank, ranks_ - 1);
    return goal_ == Goal::kAllGather ? Length(rank, rank) : last.first + last.count;
  }
  [[nodiscard]] uint64_t OutputOf(uint32_t rank) const {
    const KernelPart last = Output(rank, ranks_ - 1);
    return goal_ == Goal::kReduceScatter ? Length(rank, rank) : last.first + last.count;
  }

 private:
  const Goal goal_;
  const uint32_t ranks_;
  const std::vector<uint64_t>& sizes_;
  const uint64_t unit_;
};

bool HasShards(Goal goal) {
  return goal == Goal::kReduceScatter || goal == Goal::kAllGather || goal == Goal::kAllToAll;
}

}  // namespace

Result<KernelShapes> KernelShapes::Of(const schedule::Schedule& schedule, uint64_t count,
                                      const std::vector<uint64_t>& sizes, uint64_t unit,
                                      uint64_t grain) {
  const schedule::Facts& facts = schedule.facts();
  const bool sharded = HasShards(facts.goal);
  const uint64_t squared = uint64_t{facts.ranks} * facts.ranks;
  const uint64_t wanted = !sharded ? 0 : facts.goal == Goal::kAllToAll ? squared : facts.ranks;
  if (sizes.size() != wanted || (sharded && facts.chunks != facts.ranks)) {
    return MakeError(ErrorKind::kInvalid, "a persistent kernel: " + std::to_string(wanted) +
                                              " sizes are needed, not " +
                                              std::to_string(sizes.size()));
  }
  const Shards shards(facts.goal, facts.ranks, sizes, unit);
  KernelShapes shapes;
  for (uint32_t rank = 0; rank < facts.ranks; ++rank) {
    shapes.scratch_chunks = std::max(shapes.scratch_chunks, schedule.scratch(rank));
    shapes.most_input = std::max(shapes.most_input, sharded ? shards.InputOf(rank) : count);
    shapes.most_output = std::max(shapes.most_output, sharded ? shards.OutputOf(rank) : count);
    for (const bool output : {false, true}) {
      for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
        const KernelPart part = !sharded ? CutOfVector(count, facts.chunks, chunk, grain)
                                : output ? shards.Output(rank, chunk)
                                         : shards.Input(rank, chunk);
        shapes.longest = std::max(shapes.longest, part.count);
        shapes.parts.push_back(part);
      }
    }
  }
  for (uint32_t rank = 0; rank < facts.ranks; ++rank) {
    for (uint32_t chunk = 0; chunk < shapes.scratch_chunks; ++chunk) {
      uint64_t length = 0;
      if (chunk < schedule.scratch(rank)) {
        const schedule::Part part = schedule.kept(rank, chunk);
        if (!sharded) {
          length = CutOfVector(count, facts.chunks, part.chunk, grain).count;
        } else {
          const bool gathers = facts.goal == Goal::kAllGather;
          const bool exchanges = facts.goal == Goal::kAllToAll;
          length = shards.Length(exchanges ? part.source : gathers ? part.chunk : rank, part.chunk);
        }
      }
      shapes.kept.push_back(length);
    }
  }
  return shapes;
}

}  // namespace horoacc::cuda
