#pragma once
// The balanced binary tree over the numbers of the ranks, down to the blocks that one host can add
// by itself.
#include <cstdint>
#include <vector>

#include "schedule/topology.h"

namespace horoacc::schedule {

/// A block is a largest subtree whose ranks all share a host: a whole host if all hosts have 2^k
/// ranks; a single rank in the worst case. The blocks are the leaves of this tree.
class BlockTree {
 public:
  struct Block {
    uint32_t first = 0, ranks = 0;
    /// The rank of the block that makes its sum of a shard: the one that equals it modulo the
    /// block's ranks, so that with as many shards as ranks each makes its own.
    [[nodiscard]] uint32_t reducer(uint32_t shard) const {
      return first + (shard % ranks + ranks - first % ranks) % ranks;
    }
  };
  /// A subtree over blocks: [first, first + blocks).
  struct Node {
    uint32_t first = 0, blocks = 1;
    uint32_t height = 0;
    uint32_t child[2]{};  ///< indices of nodes
    [[nodiscard]] bool holds(uint32_t block) const {
      return block >= first && block < first + blocks;
    }
    /// The subtree's block for a shard; blocks take turns.
    [[nodiscard]] uint32_t turn(uint32_t shard) const { return first + shard % blocks; }
  };

  explicit BlockTree(const Topology& topology);

  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  /// Nodes, children before their parents; the last node is the root.
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] const Node& root() const { return nodes_.back(); }
  [[nodiscard]] uint32_t height() const { return root().height; }
  [[nodiscard]] uint32_t block_of(uint32_t rank) const { return block_of_[rank]; }
  /// A number of shards: equally many for every block, at least one for each of its ranks.
  [[nodiscard]] uint32_t even_shards() const;
  /// The number of nodes above the block.
  [[nodiscard]] uint32_t depth_of(uint32_t block) const;

 private:
  uint32_t Grow(const Topology& topology, uint32_t rank, uint32_t ranks);

  std::vector<Block> blocks_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> block_of_;  ///< by rank
};

}  // namespace horoacc::schedule
