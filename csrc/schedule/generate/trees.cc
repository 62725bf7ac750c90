#include "schedule/generate/trees.h"

namespace horoacc::schedule {

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

}  // namespace horoacc::schedule
