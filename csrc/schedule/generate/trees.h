#pragma once
// Collectives along trees. The binary tree over 0..n-1 has leaves at odd nodes, as in NCCL's
// graph/trees.cc (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", 2009): two copies in which no rank is inside both carry half a message each,
// with full bandwidth and a depth of ceil(log2 n).
#include "schedule/generate/stage.h"

namespace horoacc::schedule {

struct TreeNode {
  bool root = false;
  uint32_t parent = 0;
  uint32_t children = 0;
  uint32_t child[2]{};
};

/// Of node `label`: without its lowest set bit and with the next one its parent, if that exists.
[[nodiscard]] TreeNode BinaryTreeNode(uint32_t n, uint32_t label);
/// A tree in which every node has one child.
[[nodiscard]] TreeNode ChainNode(uint32_t n, uint32_t label);

/// How the members of a group are named in tree `tree`.
class TreeLabels {
 public:
  /// Rotated by the number of the tree: odd labels are leaves, so neighbouring trees have
  /// different inner nodes. `mirrored`: if n is even, odd trees have the reverse order instead;
  /// with two trees that is NCCL's rule.
  TreeLabels(uint32_t n, uint32_t tree, bool mirrored)
      : n_(n), shift_(tree % n), mirror_(mirrored && n % 2 == 0 && tree % 2 == 1) {}
  [[nodiscard]] uint32_t label(uint32_t member) const {
    return mirror_ ? n_ - 1 - member : (member + n_ - shift_) % n_;
  }
  [[nodiscard]] uint32_t member(uint32_t label) const {
    return mirror_ ? n_ - 1 - label : (label + shift_) % n_;
  }

 private:
  uint32_t n_, shift_;
  bool mirror_;
};

/// A node's one step on the way up: children and its own part are summed and passed on.
[[nodiscard]] Step TreeUpStep(const TreeNode& node, uint32_t chunk, const Operand& operand);
/// A node's one step on the way down; the root sends from `from`.
[[nodiscard]] Step TreeDownStep(const TreeNode& node, uint32_t chunk, Buffer from);

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

/// A chain has the most rounds and, in windows, the full bandwidth of every link (a pipelined
/// chain; van de Geijn and Watts, 1995); the tree has ceil(log2 P) rounds and two children.
enum class RootedShape { kChain, kTree };

/// A broadcast or a reduce. Bytes a rank: S to each child or S to its parent.
class RootedCollective final : public Schedule {
 public:
  RootedCollective(Goal goal, uint32_t ranks, uint32_t root, RootedShape shape)
      : Schedule({.goal = goal, .ranks = ranks, .root = root}), shape_(shape) {}
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const RootedShape shape_;
};

}  // namespace horoacc::schedule
