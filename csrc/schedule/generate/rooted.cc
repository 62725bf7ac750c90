#include "schedule/generate/rooted.h"

namespace horoacc::schedule {
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
