#include "schedule/choice.h"

#include <algorithm>
#include <limits>

namespace horoacc::schedule {
namespace {

// Counting all steps of more ranks takes longer than what there is to gain.
constexpr uint32_t kMostCounted = 64;

/// What passes a rank or a host each way.
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

std::string_view AlgorithmChoice::For(Goal goal, uint64_t bytes, bool in_rank_order) {
  std::vector<const Algorithm*> candidates;
  bool any_measured = false;
  for (const Algorithm& algorithm : Algorithms()) {
    if (algorithm.goal != goal || (in_rank_order && !algorithm.in_rank_order)) continue;
    // With one candidate, who makes its schedule tells what is too many.
    if (!in_rank_order && topology_.ranks() > algorithm.most_ranks) continue;
    candidates.push_back(&algorithm);
    any_measured |= !measured_->Of(algorithm.name, topology_).empty();
  }
  const Algorithm* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Algorithm* candidate : candidates) {
    // A time of the model's beside a measured one would be compared with another clock.
    if (any_measured && measured_->Of(candidate->name, topology_).empty()) continue;
    const double seconds = Expected(*candidate, bytes) * Correction(*candidate, bytes);
    if (seconds < least) {
      least = seconds;
      best = candidate;
    }
  }
  return best ? best->name : std::string_view();
}

}  // namespace horoacc::schedule
