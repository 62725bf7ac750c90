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

// Messages of a node that sums towards its parent and passes the result to its children.
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

// Shards that a rank of a host sends inside, in both phases together.
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

std::vector<uint32_t> BlocksOf(const Topology& topology) {
  std::vector<uint32_t> begins;
  AddBlocks(topology, 0, topology.ranks(), begins);
  begins.push_back(topology.ranks());
  return begins;
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

// A rank shows every shard that another one of its block reduces. A block sends every shard up
// once, but its root shards; their owners send to all other hosts, and who has a result first shows
// it.
Fraction Canonical(const Plan& plan, uint32_t rank) {
  const Place at = PlaceOf(plan, rank);
  const std::vector<uint32_t> begins = BlocksOf(plan.topology);
  const auto blocks = static_cast<uint32_t>(begins.size()) - 1;
  uint32_t most = 0;
  for (uint32_t b = 0; b < blocks; ++b) most = std::max(most, begins[b + 1] - begins[b]);
  const uint32_t shards = (most + blocks - 1) / blocks * blocks;
  const auto reducer = [&](uint32_t b, uint32_t s) {
    return begins[b] + s % (begins[b + 1] - begins[b]);
  };
  uint32_t own = 0;
  while (begins[own + 1] <= rank) ++own;
  uint64_t messages = 0;
  for (uint32_t s = 0; s < shards; ++s) {
    const uint32_t owner = reducer(s % blocks, s);
    const bool root_here = plan.topology.host_of(owner) == at.host;
    const uint32_t relay = root_here ? owner : plan.topology.first(at.host) + s % at.local;
    if (reducer(own, s) != rank) ++messages;
    if (reducer(own, s) == rank && owner != rank) ++messages;
    if (owner == rank) messages += at.hosts - 1;
    if (relay == rank) messages += at.local - 1;
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
  const std::vector<uint32_t> begins = BlocksOf(plan.topology);
  uint32_t most = 1;
  for (size_t b = 0; b + 1 < begins.size(); ++b) most = std::max(most, begins[b + 1] - begins[b]);
  // The tree over unequal blocks is at most as high as that over the ranks.
  const uint32_t up = plan.topology.equal() && std::has_single_bit(plan.topology.fewest())
                          ? LogOf(plan.topology.hosts())
                          : LogOf(plan.topology.ranks());
  return (most > 1 ? 1 : 0) + up + (plan.topology.hosts() > 1 ? 1 : 0) +
         (LargestHost(plan) > 1 ? 1 : 0);
}

uint32_t OneRound(const Plan& plan) { return plan.topology.ranks() > 1 ? 1 : 0; }

uint32_t RailAllToAllRounds(const Plan& plan) {
  return OneRound(plan) + (plan.topology.hosts() > 1 && LargestHost(plan) > 1 ? 1 : 0);
}

}  // namespace horoacc::schedule::cost
