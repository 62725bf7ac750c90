#pragma once
// The binary tree over 0..n-1 whose odd nodes are leaves, as in NCCL's graph/trees.cc (Sanders,
// Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
// Two copies in which no rank is inside both carry half a message each: full bandwidth, and a
// depth of ceil(log2 n).
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
/// A tree with one child everywhere.
[[nodiscard]] TreeNode ChainNode(uint32_t n, uint32_t label);

/// How the members of a group are named in tree `tree`.
class TreeLabels {
 public:
  /// Rotated by the number of the tree: odd labels are leaves, so neighbouring trees have
  /// different ones inside. `mirrored` turns the order round in odd trees instead if n is even;
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
/// A node's one step on the way down, of what the root has in `from`.
[[nodiscard]] Step TreeDownStep(const TreeNode& node, uint32_t chunk, Buffer from);

}  // namespace horoacc::schedule
