#include "schedule/algorithms.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "schedule/cost.h"
#include "schedule/generate/all_to_all.h"
#include "schedule/generate/canonical.h"
#include "schedule/generate/cpu_reduce.h"
#include "schedule/generate/hierarchical.h"
#include "schedule/generate/log_step.h"
#include "schedule/generate/ring.h"
#include "schedule/generate/trees.h"

namespace horoacc::schedule {
namespace {

using Made = std::unique_ptr<Schedule>;

template <typename Generator>
Made Flat(const Plan& plan) {
  return std::make_unique<Generator>(plan.topology.ranks());
}

template <typename Generator, Across across>
Made ByHosts(const Plan& plan) {
  return std::make_unique<Generator>(plan.topology, across);
}

template <Goal goal, RootedShape shape>
Made Rooted(const Plan& plan) {
  return std::make_unique<RootedCollective>(goal, plan.topology.ranks(), plan.root, shape);
}

Made DoubleTree(const Plan& plan) {
  return std::make_unique<TreesAllreduce>(plan.topology.ranks(), 2, true);
}
Made Trees(const Plan& plan) {
  return std::make_unique<TreesAllreduce>(plan.topology.ranks(), plan.trees, false);
}
template <Goal goal>
Made Canonical(const Plan& plan) {
  return std::make_unique<CanonicalReduction>(plan.topology, goal, plan.root);
}
Made Rails(const Plan& plan) { return std::make_unique<RailAllToAll>(plan.topology); }

// In trees several peers send to a rank at once over one interface. With many bytes under way, fast
// ranks fill it, and messages queue behind theirs although ranks wait for them. A slice passes
// every height of a tree before the first result comes back, hence short slices.
Cut CutOfTrees(const Facts&) {
  return {.window_bytes = uint64_t{512} << 10,
          .under_way_bytes = uint64_t{1} << 20,
          .slice_bytes = uint64_t{64} << 10};
}
constexpr Algorithm ByTrees(Algorithm algorithm) {
  algorithm.cut = CutOfTrees;
  return algorithm;
}

// A stage is a lane that waits until another lane has ended the window. So links are idle while the
// first window is summed, and again during the last window's stages. Hence windows whose chunks are
// no longer than a slice, with more windows under way.
Cut CutOfStages(const Facts& facts) {
  Cut cut;
  cut.window_bytes = std::min(facts.chunks * cut.slice_bytes, cut.window_bytes);
  return cut;
}
constexpr Algorithm ByStages(Algorithm algorithm) {
  algorithm.cut = CutOfStages;
  return algorithm;
}

constexpr std::array kAlgorithms{
    Algorithm{"ring", Goal::kAllreduce, false, Flat<RingAllreduce>, cost::Ring, cost::RingRounds},
    ByTrees(
        {"double_tree", Goal::kAllreduce, false, DoubleTree, cost::DoubleTree, cost::TreeRounds}),
    ByTrees({"trees", Goal::kAllreduce, false, Trees, cost::Trees, cost::TreeRounds}),
    Algorithm{"hierarchical", Goal::kAllreduce, true, ByHosts<Hierarchical, Across::kRing>,
              cost::HierarchicalRing, cost::HierarchicalRingRounds},
    ByTrees({"hierarchical_tree", Goal::kAllreduce, true,
             ByHosts<Hierarchical, Across::kDoubleTree>, cost::HierarchicalTree,
             cost::HierarchicalTreeRounds}),
    Algorithm{"cpu_reduce", Goal::kAllreduce, true, ByHosts<CpuReduce, Across::kRing>,
              cost::CpuReduceRing, cost::CpuReduceRingRounds},
    ByTrees({"cpu_reduce_tree", Goal::kAllreduce, true, ByHosts<CpuReduce, Across::kDoubleTree>,
             cost::CpuReduceTree, cost::CpuReduceTreeRounds}),
    ByStages({"canonical", Goal::kAllreduce, true, Canonical<Goal::kAllreduce>, cost::Canonical,
              cost::CanonicalRounds, kMostCanonicalRanks, true}),
    Algorithm{"ring_reduce_scatter", Goal::kReduceScatter, false, Flat<RingReduceScatter>,
              cost::Half, cost::HalfRingRounds},
    Algorithm{"log_reduce_scatter", Goal::kReduceScatter, false, Flat<LogReduceScatter>, cost::Half,
              cost::LogRounds},
    ByStages({"canonical_reduce_scatter", Goal::kReduceScatter, true,
              Canonical<Goal::kReduceScatter>, cost::CanonicalReduceScatter,
              cost::CanonicalReduceScatterRounds, kMostCanonicalRanks, true}),
    Algorithm{"ring_all_gather", Goal::kAllGather, false, Flat<RingAllGather>, cost::Half,
              cost::HalfRingRounds},
    Algorithm{"log_all_gather", Goal::kAllGather, false, Flat<LogAllGather>, cost::Half,
              cost::LogRounds},
    Algorithm{"chain_broadcast", Goal::kBroadcast, false,
              Rooted<Goal::kBroadcast, RootedShape::kChain>, cost::ChainBroadcast,
              cost::HalfRingRounds},
    Algorithm{"tree_broadcast", Goal::kBroadcast, false,
              Rooted<Goal::kBroadcast, RootedShape::kTree>, cost::TreeBroadcast, cost::LogRounds},
    Algorithm{"chain_reduce", Goal::kReduce, false, Rooted<Goal::kReduce, RootedShape::kChain>,
              cost::ToParent, cost::HalfRingRounds},
    Algorithm{"tree_reduce", Goal::kReduce, false, Rooted<Goal::kReduce, RootedShape::kTree>,
              cost::ToParent, cost::LogRounds},
    ByStages({"canonical_reduce", Goal::kReduce, true, Canonical<Goal::kReduce>,
              cost::CanonicalReduce, cost::CanonicalReduceRounds, kMostCanonicalRanks, true}),
    Algorithm{"direct_all_to_all", Goal::kAllToAll, false, Flat<DirectAllToAll>, cost::Half,
              cost::OneRound},
    Algorithm{"rail_all_to_all", Goal::kAllToAll, true, Rails, cost::RailAllToAll,
              cost::RailAllToAllRounds},
};

}  // namespace

Status CheckPlan(const Plan& plan) {
  const auto wrong = [](std::string what) {
    return MakeError(ErrorKind::kInvalid, std::move(what));
  };
  const uint32_t ranks = plan.topology.ranks();
  if (plan.topology.fewest() == 0) return wrong("a host has no ranks");
  if (ranks > kMostRanks) return wrong("more than " + std::to_string(kMostRanks) + " ranks");
  if (plan.root >= ranks) return wrong("the root is rank " + std::to_string(plan.root));
  if (plan.trees == 0 || plan.trees > kMostTrees) {
    return wrong("the number of trees is 1 to " + std::to_string(kMostTrees));
  }
  return {};
}

Status CheckPlan(const Algorithm& algorithm, const Plan& plan) {
  HA_TRY(CheckPlan(plan));
  if (plan.topology.ranks() <= algorithm.most_ranks) return {};
  return MakeError(ErrorKind::kInvalid, std::string(algorithm.name) + " is for at most " +
                                            std::to_string(algorithm.most_ranks) + " ranks");
}

uint32_t WindowsUnderWay(const Cut& cut, uint64_t window_bytes) {
  constexpr uint64_t kMost = 32;  // windows, if a setting makes them tiny
  return static_cast<uint32_t>(std::clamp<uint64_t>(cut.under_way_bytes / window_bytes, 2, kMost));
}

std::span<const Algorithm> Algorithms() { return kAlgorithms; }

Result<const Algorithm*> FindAlgorithm(std::string_view name) {
  std::string names;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) return &algorithm;
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return MakeError(ErrorKind::kInvalid,
                   "there is no algorithm '" + std::string(name) + "'; there are " + names);
}

}  // namespace horoacc::schedule
