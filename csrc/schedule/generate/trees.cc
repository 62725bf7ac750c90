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
  // The sum turns round at the root; whatever is below hears of it by the message.
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

namespace {

TreeNode NodeOf(const Facts& facts, uint32_t rank, RootedShape shape) {
  const uint32_t label = TreeLabels(facts.ranks, facts.root, false).label(rank);
  return shape == RootedShape::kChain ? ChainNode(facts.ranks, label)
                                      : BinaryTreeNode(facts.ranks, label);
}

void PlaceAtRoot(Step& step, const Facts& facts) {
  const TreeLabels labels(facts.ranks, facts.root, false);
  PlacePeers(step, [&](uint32_t label) { return labels.member(label); });
}

}  // namespace

Broadcast::Broadcast(uint32_t ranks, uint32_t root, RootedShape shape)
    : Schedule({.goal = Goal::kBroadcast, .ranks = ranks, .root = root}), shape_(shape) {}

uint32_t Broadcast::steps(uint32_t rank, uint32_t) const {
  return rank == facts().root && facts().ranks > 1 ? 2 : 1;
}

Step Broadcast::step(uint32_t rank, uint32_t, uint32_t k) const {
  // The root sends before it copies: others wait for the one and nobody for the other.
  if (rank == facts().root && k + 1 == steps(rank, 0)) return CopyThrough(0, 1, 0);
  Step step = TreeDownStep(NodeOf(facts(), rank, shape_), 0, Buffer::kInput);
  PlaceAtRoot(step, facts());
  return step;
}

Reduce::Reduce(uint32_t ranks, uint32_t root, RootedShape shape)
    : Schedule({.goal = Goal::kReduce, .ranks = ranks, .root = root}), shape_(shape) {}

uint32_t Reduce::steps(uint32_t, uint32_t) const { return 1; }

Step Reduce::step(uint32_t rank, uint32_t, uint32_t) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  Step step = TreeUpStep(NodeOf(facts(), rank, shape_), 0, {});
  PlaceAtRoot(step, facts());
  return step;
}

}  // namespace horoacc::schedule
