#pragma once
// Reductions whose sums are made along the balanced binary tree over the numbers of the ranks, and
// so are the same to the bit on any hosts. The exchange between blocks is recursive halving
// (Rabenseifner 2004, and Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005) with neighbours first, generalised to trees of any shape.
#include <vector>

#include "schedule/generate/block_tree.h"
#include "schedule/generate/stage.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

/// A block's ranks reduce their shards in one pass each. Then, for every shard, partial sums go up
/// the tree over the blocks: one of two siblings adds. The block that makes the last sum depends on
/// the goal:
///   allreduce       blocks in turn, so that all send and receive equally; the block sends the
///                   result to one rank of every other host, which shows it to its host
///   reduce-scatter  the block of the rank that gets the shard; that rank makes the sum
///   reduce          a block of the half of the tree without the root, and likewise in subtrees
///                   with the root; so the root's host sends its sum once and receives the result
///                   once. If all other blocks are one sibling of the root's block: that block
///
/// Lanes:
///   0 show       every rank shows its input to those of its block that reduce it
///   1 reduce
///   2 up         partial sums go to siblings
///   3 ...        siblings' partial sums are added, one lane for each height of the tree
///   then         results come from other hosts; go to them; go to ranks of the host; come from
///                them. A reduce has only the first, on its root
///
/// The tables take a few bytes for every pair of blocks.
class CanonicalReduction final : public Schedule {
 public:
  /// `root`: the root of a reduce.
  CanonicalReduction(const Topology& topology, Goal goal, uint32_t root = 0);
  [[nodiscard]] uint32_t scratch(uint32_t rank) const override;
  [[nodiscard]] Part kept(uint32_t rank, uint32_t chunk) const override;
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  /// One step of a lane: its shard and its peer.
  struct Note {
    uint32_t shard = 0, peer = 0;
    uint32_t after = 0;
    uint8_t height = 0;  ///< of the subtree whose halves are added
    bool raw = false;    ///< this rank's operand is its input
  };

  CanonicalReduction(const Topology& topology, BlockTree tree, Goal goal, uint32_t root);
  [[nodiscard]] static Facts FactsOf(const Topology& topology, const BlockTree& tree, Goal goal,
                                     uint32_t root);

  static constexpr uint32_t kNothing = ~0u;
  void NoteReduction();
  void NoteWayUp();
  void NoteResultsToHosts();
  [[nodiscard]] uint32_t AdderIn(const BlockTree::Node& node, uint32_t shard) const;
  [[nodiscard]] uint32_t ReducerOf(uint32_t block, uint32_t shard) const;
  [[nodiscard]] uint32_t OwnerOf(uint32_t shard) const;
  [[nodiscard]] uint32_t RelayOf(uint32_t host, uint32_t shard) const;
  void Keep(uint32_t rank, uint32_t shard);
  /// The chunk in which a rank keeps its unfinished sum of a shard.
  [[nodiscard]] uint32_t PlaceOf(uint32_t rank, uint32_t shard) const;
  /// Appends a step that needs the result of the rank's lane `needs` (kNothing: the input). The
  /// step waits for that lane unless an earlier step of its lane has done so.
  void Append(uint32_t rank, uint32_t lane, Note note, uint32_t needs);
  [[nodiscard]] uint32_t height() const { return tree_.height(); }
  [[nodiscard]] bool everywhere() const { return facts().goal == Goal::kAllreduce; }
  /// Unfinished sums lie in the output only where every rank has one for every shard.
  [[nodiscard]] Buffer partials() const {
    return everywhere() ? Buffer::kOutput : Buffer::kScratch;
  }
  /// Sets where the sum of a step goes; `last`: the sum is the result.
  void Store(Step& step, uint32_t rank, uint32_t shard, bool last) const;
  [[nodiscard]] Step ReduceBlock(const Note& note, uint32_t rank) const;
  [[nodiscard]] Step GoUp(const Note& note, uint32_t rank, bool adds) const;
  void PassResult(Step& step, uint32_t rank, uint32_t lane, uint32_t shard) const;

  const Topology topology_;
  const BlockTree tree_;
  std::vector<std::vector<Note>> notes_;  ///< by rank and lane
  std::vector<uint32_t> awaited_;         ///< by rank and lane: mask of awaited lanes
  /// By rank: the shards of which it keeps unfinished sums in scratch, in ascending order.
  std::vector<std::vector<uint32_t>> kept_;
};

}  // namespace horoacc::schedule
