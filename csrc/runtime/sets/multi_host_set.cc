#include "runtime/sets/multi_host_set.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "schedule/select.h"

namespace horoacc {

MultiHostSet::MultiHostSet(const std::vector<int>& host_of, std::vector<int> ranks, uint32_t me,
                           const Settings& settings,
                           std::shared_ptr<const schedule::MeasuredTable> measured)
    : me_(me), ranks_(std::move(ranks)), wide_(settings.reduction == "canonical") {
  std::vector<int> hosts;  // in the order of their lowest ranks
  for (const int rank : ranks_) {
    if (std::ranges::find(hosts, host_of[rank]) == hosts.end()) hosts.push_back(host_of[rank]);
  }
  for (const int host : hosts) {
    const size_t before = by_host_.size();
    for (uint32_t index = 0; index < size(); ++index) {
      if (host_of[ranks_[index]] == host) by_host_.push_back(index);
    }
    ranks_per_host_.push_back(static_cast<uint32_t>(by_host_.size() - before));
  }
  const bool in_order = std::ranges::is_sorted(by_host_);
  choice_.emplace(schedule::Topology(ranks_per_host_), measured, in_order);
  const uint32_t largest = std::ranges::max(ranks_per_host_);
  eager_.emplace(ranks_per_host_, false, settings);
  if (!ForcedAlgorithm(schedule::Goal::kAllreduce, settings).empty()) return;
  in_rank_order_ =
      settings.reduction == "canonical" ||
      (settings.reduction == "auto" && choice_->RankOrderIsCheap(schedule::Goal::kAllreduce));
  between_choice_.emplace(schedule::Topology(std::vector<uint32_t>(ranks_per_host_.size(), 1)),
                          std::move(measured));
  grants_ = largest == 1;
  if (largest == 1) return;
  // Then each host's sum is a node of the tree over all ranks.
  const bool aligned =
      in_order && std::ranges::min(ranks_per_host_) == largest && std::has_single_bit(largest);
  composes_ = grants_ = aligned || !in_rank_order_;
  eager_.emplace(ranks_per_host_, aligned, settings);
}

std::vector<int> MultiHostSet::LowestOfHosts() const {
  std::vector<int> lowest;
  uint32_t at = 0;
  for (const uint32_t ranks : ranks_per_host_) {
    lowest.push_back(ranks_[by_host_[at]]);
    at += ranks;
  }
  return lowest;
}

RunOptions MultiHostSet::NextRun(uint32_t set, const schedule::Cut& cut, uint64_t window_bytes,
                                 uint64_t run) {
  RunOptions options;
  options.collective = {set, run != 0 ? run : ++runs_};
  options.window_bytes = window_bytes > 0 ? window_bytes : cut.window_bytes;
  options.slice_bytes = cut.slice_bytes;
  options.depth = options.places = WindowsUnderWay(cut, options.window_bytes);
  return options;
}

Result<MultiHostSet::ComposedSchedule> MultiHostSet::Compose(uint64_t bytes,
                                                             std::string_view algorithm) {
  const uint32_t rails = std::ranges::min(ranks_per_host_);
  const auto at = static_cast<uint32_t>(std::ranges::find(by_host_, me_) - by_host_.begin());
  const schedule::Topology topology(ranks_per_host_);
  const uint32_t host = topology.host_of(at);
  ComposedSchedule composed{{at - topology.first(host), rails}, std::nullopt, {}};
  if (composed.rail.number >= rails) return composed;
  const std::string_view name =
      algorithm.empty() ? between_choice_->For(schedule::Goal::kAllreduce, bytes, in_rank_order_)
                        : algorithm;
  composed.algorithm = name;
  const auto [known, fresh] = between_.try_emplace(std::string(name));
  if (fresh) {
    HA_ASSIGN(const schedule::Algorithm* const found, schedule::FindAlgorithm(name));
    const schedule::Plan plan{.topology = schedule::Topology::Equal(topology.hosts(), 1)};
    std::shared_ptr<const schedule::Schedule> made = found->make(plan);
    RunGroup group{host, {}, {}};
    for (uint32_t each = 0; each < topology.hosts(); ++each) {
      group.ranks.push_back(ranks_[by_host_[topology.first(each) + composed.rail.number]]);
      group.member_of_place.push_back(each);
    }
    const schedule::Cut cut = found->cut(made->facts());
    known->second = {std::move(made), std::move(group), cut};
  }
  composed.between = known->second;
  return composed;
}

Result<MultiHostSet::Scheduled> MultiHostSet::Schedule(std::string_view algorithm, uint32_t root) {
  const auto key = std::pair(std::string(algorithm), root);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  HA_ASSIGN(const schedule::Algorithm* const found, schedule::FindAlgorithm(algorithm));
  const auto make = [&](std::vector<uint32_t> order,
                        const std::vector<uint32_t>& hosts) -> Result<Scheduled> {
    const auto place = std::ranges::find(order, root) - order.begin();
    const schedule::Plan plan{.topology = schedule::Topology(hosts),
                              .root = static_cast<uint32_t>(place)};
    HA_TRY(schedule::CheckPlan(*found, plan));
    std::shared_ptr<const schedule::Schedule> made = found->make(plan);
    const schedule::Cut cut = found->cut(made->facts());
    return Scheduled{std::move(made), {me_, ranks_, std::move(order)}, cut};
  };
  HA_ASSIGN(Scheduled scheduled, make(by_host_, ranks_per_host_));
  // If ranks do not lie host after host, sums in rank order cannot use shared hosts.
  if (scheduled.schedule->facts().in_rank_order && !std::ranges::is_sorted(by_host_)) {
    std::vector<uint32_t> order(size());
    std::iota(order.begin(), order.end(), 0u);
    HA_ASSIGN(scheduled, make(std::move(order), std::vector<uint32_t>(size(), 1)));
  }
  return known_.emplace(key, std::move(scheduled)).first->second;
}

}  // namespace horoacc
