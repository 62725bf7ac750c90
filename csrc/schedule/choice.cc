#include "schedule/choice.h"

#include <algorithm>

namespace horoacc::schedule {
namespace {

// Ranks whose steps are counted: counting more takes longer than a better choice saves.
constexpr uint32_t kMostCounted = 64;

// The usual sizes of a step's buckets of gradients.
constexpr uint64_t kBuckets[] = {uint64_t{1} << 20, uint64_t{32} << 20};
// The slowdown at which results with the same bits on all shapes of hosts are still taken.
constexpr double kHardlyLonger = 1.1;

const Algorithm* InRankOrder(Goal goal) {
  for (const Algorithm& algorithm : Algorithms()) {
    if (algorithm.goal == goal && algorithm.in_rank_order) return &algorithm;
  }
  return nullptr;
}

/// The bytes that pass a rank or a host each way.
struct Passed {
  uint64_t out = 0, in = 0;
  [[nodiscard]] uint64_t more() const { return std::max(out, in); }
};

// Evenly spaced hosts that have about as many ranks as are counted.
std::vector<uint32_t> CountedHosts(const Topology& topology) {
  const uint32_t ranks = topology.ranks();
  const uint32_t every = (ranks + kMostCounted - 1) / kMostCounted;
  std::vector<uint32_t> hosts;
  for (uint32_t host = 0; host < topology.hosts(); host += every) hosts.push_back(host);
  return hosts;
}

double PartOfAll(uint64_t chunks, const Facts& facts) {
  return static_cast<double>(chunks) / static_cast<double>(facts.chunks);
}

}  // namespace

const AlgorithmChoice::Load& AlgorithmChoice::LoadOf(const Algorithm& algorithm) {
  const auto known = loads_.find(algorithm.name);
  if (known != loads_.end()) return known->second;
  const Plan plan{.topology = topology_};
  const auto schedule = algorithm.make(plan);
  Load load{.rounds = algorithm.rounds(plan)};
  for (const uint32_t host : CountedHosts(topology_)) {
    Passed messages;
    Passed chunks;
    for (uint32_t local = 0; local < topology_.local(host); ++local) {
      const uint32_t rank = topology_.first(host) + local;
      Passed own;
      const auto add = [&](uint32_t peer, uint32_t count, uint64_t Passed::* way) {
        own.*way += count;
        if (topology_.host_of(peer) == host) return;
        messages.*way += 1;
        chunks.*way += count;
      };
      for (uint32_t lane = 0; lane < schedule->facts().lanes; ++lane) {
        const uint32_t steps = schedule->steps(rank, lane);
        for (uint32_t k = 0; k < steps; ++k) {
          const Step step = schedule->step(rank, lane, k);
          ForEachTarget(step, rank, [&](uint32_t to) { add(to, step.count, &Passed::out); });
          ForEachSource(step, rank, [&](uint32_t from) { add(from, step.count, &Passed::in); });
        }
      }
      load.rank = std::max(load.rank, PartOfAll(own.more(), schedule->facts()));
    }
    load.messages = std::max(load.messages, messages.more());
    load.host = std::max(load.host, PartOfAll(chunks.more(), schedule->facts()));
  }
  return loads_.emplace(algorithm.name, load).first->second;
}

double AlgorithmChoice::Expected(const Algorithm& algorithm, uint64_t bytes) {
  constexpr LinkCosts kCosts;
  const Load& load = LoadOf(algorithm);
  const auto size = static_cast<double>(bytes);
  return load.rounds * kCosts.round + static_cast<double>(load.messages) * kCosts.message +
         std::max(load.rank * size / kCosts.rank, load.host * size / kCosts.host);
}

// Linear between the sizes that were measured, and beyond them as at the nearest.
double AlgorithmChoice::Correction(const Algorithm& algorithm, uint64_t bytes) {
  const auto& points = measured_->Of(algorithm.name, topology_);
  if (points.empty()) return 1;
  const auto ratio = [&](const MeasuredTable::Point& point) {
    return point.seconds / Expected(algorithm, point.bytes);
  };
  const auto above = std::ranges::lower_bound(points, bytes, {}, &MeasuredTable::Point::bytes);
  if (above == points.begin()) return ratio(points.front());
  if (above == points.end()) return ratio(points.back());
  const auto below = above - 1;
  const double part =
      static_cast<double>(bytes - below->bytes) / static_cast<double>(above->bytes - below->bytes);
  return ratio(*below) + (ratio(*above) - ratio(*below)) * part;
}

// Compares modelled times with each other, or measured ones: never one with the other.
AlgorithmChoice::Expectation AlgorithmChoice::Quickest(Goal goal, uint64_t bytes, bool measured) {
  Expectation best;
  for (const Algorithm& algorithm : Algorithms()) {
    if (algorithm.goal != goal || topology_.ranks() > algorithm.most_ranks) continue;
    if (measured && !Measured(algorithm)) continue;
    // For ranks in another order its schedule has one rank a host; that is not modelled here.
    if (algorithm.in_rank_order && !in_order_) continue;
    const double correction = measured ? Correction(algorithm, bytes) : 1;
    const double seconds = Expected(algorithm, bytes) * correction;
    if (best.algorithm == nullptr || seconds < best.seconds) best = {&algorithm, seconds};
  }
  return best;
}

bool AlgorithmChoice::RankOrderIsCheap(Goal goal) {
  if (const auto known = rank_order_is_cheap_.find(goal); known != rank_order_is_cheap_.end())
    return known->second;
  const Algorithm* const ordered = InRankOrder(goal);
  bool cheap = in_order_ && ordered != nullptr && topology_.ranks() <= ordered->most_ranks;
  const bool measured = cheap && Measured(*ordered);
  for (const uint64_t bytes : kBuckets) {
    if (!cheap) break;
    const double correction = measured ? Correction(*ordered, bytes) : 1;
    cheap = Expected(*ordered, bytes) * correction <=
            kHardlyLonger * Quickest(goal, bytes, measured).seconds;
  }
  return rank_order_is_cheap_[goal] = cheap;
}

std::string_view AlgorithmChoice::For(Goal goal, uint64_t bytes, bool in_rank_order) {
  // In rank order there is one candidate; its generator reports too many ranks.
  const Algorithm* chosen =
      in_rank_order ? InRankOrder(goal) : Quickest(goal, bytes, true).algorithm;
  if (chosen == nullptr) chosen = Quickest(goal, bytes, false).algorithm;  // none was measured
  return chosen != nullptr ? chosen->name : std::string_view();
}

}  // namespace horoacc::schedule
