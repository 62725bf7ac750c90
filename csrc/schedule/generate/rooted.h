#pragma once
// Broadcast and reduce along a chain or a binary tree that starts at the root.
#include "schedule/generate/binary_tree.h"

namespace horoacc::schedule {

/// A chain has the most rounds and, in windows, the full bandwidth of every link (a pipelined
/// chain; van de Geijn and Watts, 1995); the tree has ceil(log2 P) rounds and two children.
enum class RootedShape { kChain, kTree };

/// Bytes a rank: S from its parent, S to each child.
class Broadcast final : public Schedule {
 public:
  Broadcast(uint32_t ranks, uint32_t root, RootedShape shape);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const RootedShape shape_;
};

/// Bytes a rank: S from each child, S to its parent.
class Reduce final : public Schedule {
 public:
  Reduce(uint32_t ranks, uint32_t root, RootedShape shape);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const RootedShape shape_;
};

}  // namespace horoacc::schedule
