#pragma once
// Allreduce whose sums are made along the balanced binary tree over the numbers of the ranks, and
// so are the same to the bit on any hosts. The exchange between blocks is recursive halving
// (Rabenseifner 2004, and Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005) with neighbours first, generalised to trees of any shape.
#include <vector>

#include "schedule/generate/stage.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

/// A block is a largest subtree whose ranks all share a host: of hosts with 2^k ranks each, the
/// host; where nothing fits together, every rank. A block's ranks reduce their shards in one pass
/// each. Then, for every shard, partial sums go up the tree over the blocks: of two siblings one
/// adds, and for each shard another one, so that all send and receive alike. The shard's root sends
/// the result to one rank of every other host, and these show it to their hosts.
///
/// Lanes:
///   0 show       every rank shows its input to those of its block that reduce it
///   1 reduce
///   2 up         partial sums to siblings
///   3 ...        siblings' partial sums are added, one lane for each height of the tree
///   then         results to other hosts; results from there; results to the own host; from there
///
/// Its tables take a few bytes for every pair of blocks.
class CanonicalAllreduce final : public Schedule {
 public:
  explicit CanonicalAllreduce(const Topology& topology);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  struct Block {
    uint32_t first = 0, ranks = 0;
    /// Who of the block makes its sum of a shard.
    [[nodiscard]] uint32_t reducer(uint32_t shard) const { return first + shard % ranks; }
  };
  /// A subtree over blocks: [first, first + blocks).
  struct Node {
    uint32_t first = 0, blocks = 1;
    uint32_t height = 0;
    uint32_t child[2]{};  ///< into the nodes
    [[nodiscard]] bool holds(uint32_t block) const {
      return block >= first && block < first + blocks;
    }
    /// The block that adds for `shard` in here, unless the shard's own way up leads through.
    [[nodiscard]] uint32_t adder(uint32_t shard) const { return first + shard % blocks; }
  };

  struct Shape {
    std::vector<Block> blocks;
    std::vector<Node> nodes;  ///< the last is the root
  };
  /// One step of a lane: a shard, and with whom.
  struct Note {
    uint32_t shard = 0, peer = 0;
    uint32_t after = 0;
    uint8_t height = 0;  ///< of the subtree whose halves are added
    bool raw = false;    ///< what this rank has of it is still its input
  };

  CanonicalAllreduce(const Topology& topology, Shape shape, uint32_t shards);
  static Shape ShapeOf(const Topology& topology);
  static uint32_t Grow(const Topology& topology, Shape& shape, uint32_t rank, uint32_t ranks);
  static uint32_t ShardsOf(const Shape& shape);

  static constexpr uint32_t kNothing = ~0u;
  void NoteReduction();
  void NoteWayUp();
  void NoteWayDown();
  [[nodiscard]] uint32_t OwnerOf(uint32_t shard) const;
  [[nodiscard]] uint32_t RelayOf(uint32_t host, uint32_t shard) const;
  /// Appends a step that needs what lane `needs` of the rank has made (kNothing: the input). It
  /// says so unless an earlier step of its lane has waited for that already.
  void Append(uint32_t rank, uint32_t lane, Note note, uint32_t needs);
  [[nodiscard]] uint32_t height() const { return shape_.nodes.back().height; }

  const Topology topology_;
  const Shape shape_;
  std::vector<uint32_t> block_of_;        ///< by rank
  std::vector<std::vector<Note>> notes_;  ///< by rank and lane
  std::vector<uint32_t> awaited_;         ///< by rank and lane: lanes that it has waited for
};

}  // namespace horoacc::schedule
