#pragma once
// Allreduce up and down k trees at once, each with a k-th of the vector.
#include "schedule/generate/binary_tree.h"

namespace horoacc::schedule {

/// Lanes: for tree t the way up (2t) and the way down (2t + 1), so that both run at the same time
/// when the vector comes in windows.
[[nodiscard]] Step TreesAllreduceStep(uint32_t n, uint32_t member, uint32_t lane, bool mirrored,
                                      const Operand& operand);

/// k = 2, mirrored or shifted: the double binary tree (NCCL 2.4). 2 ceil(log2 P) rounds, at most
/// 2S bytes sent by a rank. Any other k: the N-trees of AIACC and Blink, for machines where one
/// pair of trees leaves links idle.
class TreesAllreduce final : public Schedule {
 public:
  TreesAllreduce(uint32_t ranks, uint32_t trees, bool mirrored);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const bool mirrored_;
};

}  // namespace horoacc::schedule
