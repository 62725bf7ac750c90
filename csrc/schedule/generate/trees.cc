#include "schedule/generate/trees.h"

#include <bit>

namespace horoacc::schedule {

TreeNode BinaryTreeNode(uint32_t n, uint32_t label) {
  TreeNode node;
  if (label == 0) {
    node.root = true;
    if (n > 1) node.child[node.children++] = std::bit_floor(n - 1);
    return node;
  }
  const uint32_t bit = label & -label;
  node.parent = (label ^ bit) | bit << 1;
  if (node.parent >= n) node.parent = label ^ bit;
  uint32_t low = bit >> 1;
  if (low == 0) return node;
  node.child[node.children++] = label - low;
  while (low > 0 && label + low >= n) low >>= 1;
  if (low > 0) node.child[node.children++] = label + low;
  return node;
}

TreeNode ChainNode(uint32_t n, uint32_t label) {
  TreeNode node;
  node.root = label == 0;
  if (!node.root) node.parent = label - 1;
  if (label + 1 < n) node.child[node.children++] = label + 1;
  return node;
}

Step TreeUpStep(const TreeNode& node, uint32_t chunk, const Operand& operand) {
  Step step;
  step.src_chunk = step.dst_chunk = chunk;
  step.src = operand.own;
  step.flags = operand.load;
  for (uint32_t k = 0; k < node.children; ++k) step.peer[step.receives++] = node.child[k];
  if (node.root) {
    step.op = Op::kRecvReduce;
    step.dst = Buffer::kOutput;
    step.flags |= operand.done;
  } else {
    step.op = node.children == 0 ? Op::kSend : Op::kRecvReduceSend;
    step.peer[step.receives + step.sends++] = node.parent;
  }
  return step;
}

Step TreeDownStep(const TreeNode& node, uint32_t chunk, Buffer from) {
  Step step;
  step.src_chunk = step.dst_chunk = chunk;
  if (node.root) {
    step.op = Op::kSend;
    step.src = from;
  } else {
    step.op = node.children == 0 ? Op::kRecv : Op::kRecvCopySend;
    step.dst = Buffer::kOutput;
    step.peer[step.receives++] = node.parent;
  }
  for (uint32_t k = 0; k < node.children; ++k) {
    step.peer[step.receives + step.sends++] = node.child[k];
  }
  return step;
}

Step TreesAllreduceStep(uint32_t n, uint32_t member, uint32_t lane, bool mirrored,
                        const Operand& operand) {
  const uint32_t tree = lane / 2;
  const TreeLabels labels(n, tree, mirrored);
  const TreeNode node = BinaryTreeNode(n, labels.label(member));
  Step step =
      lane % 2 == 0 ? TreeUpStep(node, tree, operand) : TreeDownStep(node, tree, Buffer::kOutput);
  PlacePeers(step, [&](uint32_t label) { return labels.member(label); });
  step.channel = static_cast<uint8_t>(lane);
  // The root sends the sum down; the nodes below wait for its message.
  if (node.root && lane % 2 == 1) step.after = 1u << (lane - 1);
  return step;
}

TreesAllreduce::TreesAllreduce(uint32_t ranks, uint32_t trees, bool mirrored)
    : Schedule({.goal = Goal::kAllreduce, .ranks = ranks, .lanes = 2 * trees, .chunks = trees}),
      mirrored_(mirrored) {}

uint32_t TreesAllreduce::steps(uint32_t, uint32_t lane) const {
  return facts().ranks > 1 || lane == 0 ? 1 : 0;
}

Step TreesAllreduce::step(uint32_t rank, uint32_t lane, uint32_t) const {
  if (facts().ranks == 1) return CopyThrough(0, facts().chunks, kPrescaleOwn | kPostscale);
  return TreesAllreduceStep(facts().ranks, rank, lane, mirrored_, {});
}

// The root of a broadcast sends before it copies: other ranks wait for its message, and no rank for
// its copy.
uint32_t RootedCollective::steps(uint32_t rank, uint32_t) const {
  return facts().goal == Goal::kBroadcast && rank == facts().root && facts().ranks > 1 ? 2 : 1;
}

Step RootedCollective::step(uint32_t rank, uint32_t, uint32_t k) const {
  const bool broadcast = facts().goal == Goal::kBroadcast;
  if (facts().ranks == 1 || k == 1)
    return CopyThrough(0, 1, broadcast ? 0 : kPrescaleOwn | kPostscale);
  const TreeLabels labels(facts().ranks, facts().root, false);
  const uint32_t label = labels.label(rank);
  const TreeNode node = shape_ == RootedShape::kChain ? ChainNode(facts().ranks, label)
                                                      : BinaryTreeNode(facts().ranks, label);
  Step step = broadcast ? TreeDownStep(node, 0, Buffer::kInput) : TreeUpStep(node, 0, {});
  PlacePeers(step, [&](uint32_t peer) { return labels.member(peer); });
  return step;
}

}  // namespace horoacc::schedule
