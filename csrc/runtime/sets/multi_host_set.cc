#include "runtime/sets/multi_host_set.h"

#include <algorithm>
#include <numeric>

namespace horoacc {

MultiHostSet::MultiHostSet(const std::vector<int>& host_of, std::vector<int> ranks, uint32_t me,
                           std::shared_ptr<const schedule::MeasuredTable> measured)
    : me_(me), ranks_(std::move(ranks)) {
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
  choice_.emplace(schedule::Topology(ranks_per_host_), std::move(measured),
                  std::ranges::is_sorted(by_host_));
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
