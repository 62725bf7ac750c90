#pragma once
// Rings (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009): every member talks to its two neighbours only, all links are busy all the
// time, and the bytes are the least possible; the latency grows with the number of members.
#include "schedule/generate/stage.h"

namespace horoacc::schedule {

/// Step k of `shards` steps of member i of n > 1: the sum of chunk c < shards travels from member
/// c + 1 once around, and ends at member c. Fewer shards than members leave some without one.
[[nodiscard]] Step RingReduceScatterStep(uint32_t n, uint32_t i, uint32_t shards, uint32_t k,
                                         const Operand& operand);
/// Step k of `shards` steps: chunk c travels from member c once around.
[[nodiscard]] Step RingAllGatherStep(uint32_t n, uint32_t i, uint32_t shards, uint32_t k);

/// 2n - 1 steps, in which a member sends 2(n - 1) times; the middle one ends the first half and
/// begins the second.
[[nodiscard]] Step RingAllreduceStep(uint32_t n, uint32_t i, uint32_t k, const Operand& operand);

/// Scatter-reduce and all-gather: 2(P-1) rounds, 2S(P-1)/P bytes a rank.
class RingAllreduce final : public Schedule {
 public:
  explicit RingAllreduce(uint32_t ranks);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;
};

/// P-1 rounds, S(P-1)/P bytes a rank.
class RingReduceScatter final : public Schedule {
 public:
  explicit RingReduceScatter(uint32_t ranks);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;
};

/// P-1 rounds, S(P-1)/P bytes a rank, where S is the gathered vector.
class RingAllGather final : public Schedule {
 public:
  explicit RingAllGather(uint32_t ranks);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;
};

}  // namespace horoacc::schedule
