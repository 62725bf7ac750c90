#include "schedule/generate/block_tree.h"

#include <algorithm>
#include <bit>

namespace horoacc::schedule {

BlockTree::BlockTree(const Topology& topology) {
  Grow(topology, 0, topology.ranks());
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    block_of_.insert(block_of_.end(), blocks_[b].ranks, b);
  }
}

// Splits as the tree over ranks does, down to blocks on one host. Returns the node's index.
uint32_t BlockTree::Grow(const Topology& topology, uint32_t rank, uint32_t ranks) {
  Node node{.first = static_cast<uint32_t>(blocks_.size())};
  if (topology.host_of(rank) == topology.host_of(rank + ranks - 1)) {
    blocks_.push_back({rank, ranks});
  } else {
    const uint32_t half = std::bit_floor(ranks - 1);
    node.child[0] = Grow(topology, rank, half);
    node.child[1] = Grow(topology, rank + half, ranks - half);
    node.blocks = static_cast<uint32_t>(blocks_.size()) - node.first;
    for (const uint32_t child : node.child) {
      node.height = std::max(node.height, nodes_[child].height + 1);
    }
  }
  nodes_.push_back(node);
  return static_cast<uint32_t>(nodes_.size()) - 1;
}

uint32_t BlockTree::even_shards() const {
  const auto count = static_cast<uint32_t>(blocks_.size());
  uint32_t most = 0;
  for (const Block& block : blocks_) most = std::max(most, block.ranks);
  return (most + count - 1) / count * count;
}

uint32_t BlockTree::depth_of(uint32_t block) const {
  uint32_t depth = 0;
  for (const Node& node : nodes_) depth += node.height > 0 && node.holds(block) ? 1 : 0;
  return depth;
}

}  // namespace horoacc::schedule
