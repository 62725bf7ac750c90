#include "schedule/cost.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace horoacc::schedule::cost {
namespace {

uint32_t LogOf(uint32_t n) { return static_cast<uint32_t>(std::bit_width(n - 1)); }

uint32_t ChildrenOf(uint32_t n, uint32_t label) {
  if (label == 0) return n > 1 ? 1 : 0;
  if (label % 2 == 1) return 0;
  return label + 1 < n ? 2 : 1;
}

// Messages sent by a node that sums towards its parent and passes the result to its children.
uint32_t UpAndDown(uint32_t n, uint32_t label) {
  return (label != 0 ? 1 : 0) + ChildrenOf(n, label);
}

uint32_t BothTrees(uint32_t n, uint32_t member) {
  const uint32_t second = n % 2 == 0 ? n - 1 - member : (member + n - 1) % n;
  return UpAndDown(n, member) + UpAndDown(n, second);
}

struct Place {
  uint32_t hosts, host, local, i, shards;
};

Place PlaceOf(const Plan& plan, uint32_t rank) {
  const Topology& topology = plan.topology;
  const uint32_t host = topology.host_of(rank);
  return {topology.hosts(), host, topology.local(host), rank - topology.first(host),
          topology.fewest()};
}

// Shards that a rank sends inside its host, in both phases together.
uint64_t InsideByRing(const Place& at) {
  if (at.local == 1) return 0;
  const uint32_t scattered = at.shards - (at.i < at.shards ? 1 : 0);
  const uint32_t gathered = at.shards - ((at.i + 1) % at.local < at.shards ? 1 : 0);
  return scattered + gathered;
}

uint64_t InsideAtOnce(const Place& at) {
  if (at.local == 1) return 0;
  return at.i < at.shards ? at.shards - 1 + at.local - 1 : at.shards;
}

Fraction WithRing(const Place& at, uint64_t inside) {
  const uint64_t across = at.i < at.shards ? 2ull * (at.hosts - 1) : 0;
  return {inside * at.hosts + across, static_cast<uint64_t>(at.shards) * at.hosts};
}

Fraction WithDoubleTree(const Place& at, uint64_t inside) {
  const uint64_t across = at.hosts > 1 && at.i < at.shards ? BothTrees(at.hosts, at.host) : 0;
  return {inside * 2 + across, 2ull * at.shards};
}

uint32_t LargestHost(const Plan& plan) {
  uint32_t most = 0;
  for (uint32_t h = 0; h < plan.topology.hosts(); ++h) {
    most = std::max(most, plan.topology.local(h));
  }
  return most;
}

uint32_t LabelOf(const Plan& plan, uint32_t rank) {
  return (rank + plan.topology.ranks() - plan.root) % plan.topology.ranks();
}

// The largest parts of the tree over ranks that lie on one host each: the first rank of every one,
// and the number of ranks at the end.
void AddBlocks(const Topology& topology, uint32_t first, uint32_t ranks,
               std::vector<uint32_t>& begins) {
  if (topology.host_of(first) == topology.host_of(first + ranks - 1)) {
    return begins.push_back(first);
  }
  const uint32_t half = 1u << (LogOf(ranks) - 1);
  AddBlocks(topology, first, half, begins);
  AddBlocks(topology, first + half, ranks - half, begins);
}

/// The blocks of canonical sums.
struct Blocks {
  explicit Blocks(const Topology& topology) {
    AddBlocks(topology, 0, topology.ranks(), begins);
    count = static_cast<uint32_t>(begins.size());
    begins.push_back(topology.ranks());
    for (uint32_t b = 0; b < count; ++b) most = std::max(most, begins[b + 1] - begins[b]);
  }
  // The block's rank that equals the shard modulo the number of the block's ranks.
  [[nodiscard]] uint32_t reducer(uint32_t block, uint32_t shard) const {
    const uint32_t ranks = begins[block + 1] - begins[block];
    uint32_t rank = begins[block];
    while (rank % ranks != shard % ranks) ++rank;
    return rank;
  }
  [[nodiscard]] uint32_t of(uint32_t rank) const {
    return static_cast<uint32_t>(std::ranges::upper_bound(begins, rank) - begins.begin()) - 1;
  }
  /// Equally many shards for every block.
  [[nodiscard]] uint32_t shards() const { return (most + count - 1) / count * count; }
  /// How many times the tree is cut until only the block's ranks are left.
  [[nodiscard]] uint32_t depth(uint32_t block) const {
    uint32_t first = 0;
    uint32_t ranks = begins.back();
    uint32_t cuts = 0;
    for (; ranks > begins[block + 1] - begins[block]; ++cuts) {
      const uint32_t half = 1u << (LogOf(ranks) - 1);
      const bool left = begins[block] < first + half;
      first = left ? first : first + half;
      ranks = left ? half : ranks - half;
    }
    return cuts;
  }

  std::vector<uint32_t> begins;  ///< first rank of each block, and the number of ranks
  uint32_t count = 0;
  uint32_t most = 1;  ///< ranks of a block
};

// Messages until the blocks' sums are combined: a rank shows every shard that another rank of its
// block reduces, and a block sends up every shard whose last sum another block makes.
template <typename OwnerOf>
uint64_t WayUp(const Blocks& blocks, uint32_t rank, uint32_t shards, OwnerOf owner_of) {
  const uint32_t own = blocks.of(rank);
  uint64_t messages = 0;
  for (uint32_t s = 0; s < shards; ++s) {
    if (blocks.reducer(own, s) != rank || owner_of(s) != own) ++messages;
  }
  return messages;
}

// The longest chain of messages until a subtree over so many ranks has one sum. With unequal blocks
// the height over the ranks is an upper bound.
uint32_t HeightOf(const Plan& plan, uint32_t ranks) {
  const uint32_t local = plan.topology.fewest();
  const bool aligned = plan.topology.equal() && std::has_single_bit(local);
  return LogOf(aligned ? (ranks + local - 1) / local : ranks);
}

// The same for a subtree with a reduce's root: each time its half sends the sum to the other.
uint32_t HeightOverRoot(const Plan& plan, const Blocks& blocks, uint32_t first, uint32_t ranks) {
  if (blocks.of(first) == blocks.of(first + ranks - 1)) return 0;
  const uint32_t half = 1u << (LogOf(ranks) - 1);
  const bool left = plan.root < first + half;
  const uint32_t with = left ? half : ranks - half;
  const uint32_t below = HeightOverRoot(plan, blocks, left ? first : first + half, with);
  return std::max(below + 1, HeightOf(plan, ranks - with));
}

}  // namespace

Fraction Ring(const Plan& plan, uint32_t) {
  return {2ull * (plan.topology.ranks() - 1), plan.topology.ranks()};
}

Fraction Half(const Plan& plan, uint32_t) {
  return {plan.topology.ranks() - 1, plan.topology.ranks()};
}

Fraction DoubleTree(const Plan& plan, uint32_t rank) {
  return {BothTrees(plan.topology.ranks(), rank), 2};
}

Fraction Trees(const Plan& plan, uint32_t rank) {
  const uint32_t n = plan.topology.ranks();
  uint64_t messages = 0;
  for (uint32_t t = 0; t < plan.trees; ++t) messages += UpAndDown(n, (rank + n - t % n) % n);
  return {messages, plan.trees};
}

Fraction HierarchicalRing(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  return WithRing(at, InsideByRing(at));
}

Fraction HierarchicalTree(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  return WithDoubleTree(at, InsideByRing(at));
}

Fraction CpuReduceRing(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  return WithRing(at, InsideAtOnce(at));
}

Fraction CpuReduceTree(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  return WithDoubleTree(at, InsideAtOnce(at));
}

// The shards' owners send results to all other hosts; the first rank of a host that has a result
// shows it to its host.
Fraction Canonical(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  const Blocks blocks(plan.topology);
  const uint32_t shards = blocks.shards();
  uint64_t messages = WayUp(blocks, rank, shards, [&](uint32_t s) { return s % blocks.count; });
  for (uint32_t s = 0; s < shards; ++s) {
    const uint32_t owner = blocks.reducer(s % blocks.count, s);
    const bool root_here = plan.topology.host_of(owner) == at.host;
    const uint32_t relay = root_here ? owner : plan.topology.first(at.host) + s % at.local;
    if (owner == rank) messages += at.hosts - 1;
    if (relay == rank) messages += at.local - 1;
  }
  return {messages, shards};
}

Fraction CanonicalReduceScatter(const Plan& plan, uint32_t rank) {
  const Blocks blocks(plan.topology);
  const uint32_t shards = plan.topology.ranks();
  return {WayUp(blocks, rank, shards, [&](uint32_t s) { return blocks.of(s); }), shards};
}

// A shard's last sum is made in the half without the root, or by the root's block if all the rest
// is one sibling of it; then it goes to the root. On one host the root makes the sum.
Fraction CanonicalReduce(const Plan& plan, uint32_t rank) {
  const Blocks blocks(plan.topology);
  if (blocks.count == 1) return ToParent(plan, rank);
  const uint32_t ranks = plan.topology.ranks();
  const uint32_t shards = blocks.shards();
  const uint32_t own = blocks.of(plan.root);
  const uint32_t half = 1u << (LogOf(ranks) - 1);
  const uint32_t in_left = blocks.of(half);  // blocks before the second half
  const auto owner_of = [&](uint32_t s) {
    if (blocks.depth(own) == 1) return own;
    return plan.root < half ? in_left + s % (blocks.count - in_left) : s % in_left;
  };
  uint64_t messages = WayUp(blocks, rank, shards, owner_of);
  for (uint32_t s = 0; s < shards && rank != plan.root; ++s) {
    if (blocks.reducer(owner_of(s), s) == rank) ++messages;
  }
  return {messages, shards};
}

Fraction ChainBroadcast(const Plan& plan, uint32_t rank) {
  return {LabelOf(plan, rank) + 1 < plan.topology.ranks() ? 1u : 0u, 1};
}

Fraction TreeBroadcast(const Plan& plan, uint32_t rank) {
  return {ChildrenOf(plan.topology.ranks(), LabelOf(plan, rank)), 1};
}

Fraction ToParent(const Plan& plan, uint32_t rank) { return {rank != plan.root ? 1u : 0u, 1}; }

Fraction RailAllToAll(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  uint64_t relayed = 0;
  for (uint32_t h = 0; h < at.hosts; ++h) {
    if (h == at.host) continue;
    for (uint32_t j = at.i; j < plan.topology.local(h); j += at.local) ++relayed;
  }
  const uint64_t handed = plan.topology.ranks() - 1 - relayed;
  return {handed + relayed * at.local, plan.topology.ranks()};
}

uint32_t RingRounds(const Plan& plan) { return 2 * (plan.topology.ranks() - 1); }
uint32_t HalfRingRounds(const Plan& plan) { return plan.topology.ranks() - 1; }
uint32_t TreeRounds(const Plan& plan) { return 2 * LogOf(plan.topology.ranks()); }
uint32_t LogRounds(const Plan& plan) { return LogOf(plan.topology.ranks()); }

uint32_t HierarchicalRingRounds(const Plan& plan) {
  return 2 * (LargestHost(plan) - 1) + 2 * (plan.topology.hosts() - 1);
}

uint32_t HierarchicalTreeRounds(const Plan& plan) {
  return 2 * (LargestHost(plan) - 1) + 2 * LogOf(plan.topology.hosts());
}

uint32_t CpuReduceRingRounds(const Plan& plan) {
  return (LargestHost(plan) > 1 ? 2 : 0) + 2 * (plan.topology.hosts() - 1);
}

uint32_t CpuReduceTreeRounds(const Plan& plan) {
  return (LargestHost(plan) > 1 ? 2 : 0) + 2 * LogOf(plan.topology.hosts());
}

uint32_t CanonicalRounds(const Plan& plan) {
  return CanonicalReduceScatterRounds(plan) + (plan.topology.hosts() > 1 ? 1 : 0) +
         (LargestHost(plan) > 1 ? 1 : 0);
}

uint32_t CanonicalReduceScatterRounds(const Plan& plan) {
  const bool shows = Blocks(plan.topology).most > 1;
  return (shows ? 1 : 0) + HeightOf(plan, plan.topology.ranks());
}

uint32_t CanonicalReduceRounds(const Plan& plan) {
  const Blocks blocks(plan.topology);
  const uint32_t own = blocks.of(plan.root);
  const uint32_t own_ranks = blocks.begins[own + 1] - blocks.begins[own];
  const uint32_t ranks = plan.topology.ranks();
  const uint32_t shows = blocks.most > 1 ? 1 : 0;
  switch (blocks.depth(own)) {
    case 0:
      return shows;
    case 1:  // the root's block adds, and its other ranks send the result to the root
      return shows + HeightOf(plan, ranks - own_ranks) + 1 + (own_ranks > 1 ? 1 : 0);
    default:
      return shows + HeightOverRoot(plan, blocks, 0, ranks) + 1;
  }
}

uint32_t OneRound(const Plan& plan) { return plan.topology.ranks() > 1 ? 1 : 0; }

uint32_t RailAllToAllRounds(const Plan& plan) {
  return OneRound(plan) + (plan.topology.hosts() > 1 && LargestHost(plan) > 1 ? 1 : 0);
}

}  // namespace horoacc::schedule::cost
