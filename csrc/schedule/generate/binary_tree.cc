#include "schedule/generate/binary_tree.h"

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

}  // namespace horoacc::schedule
