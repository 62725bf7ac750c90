#pragma once
// Which ranks share a host. Schedules number ranks host by host; their executor maps the ranks of a
// set onto that order.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace horoacc::schedule {

class Topology {
 public:
  explicit Topology(const std::vector<uint32_t>& ranks_per_host) : first_{0} {
    fewest_ = ranks_per_host.front();
    for (const uint32_t local : ranks_per_host) {
      first_.push_back(first_.back() + local);
      fewest_ = std::min(fewest_, local);
      equal_ = equal_ && local == ranks_per_host.front();
    }
  }
  static Topology Equal(uint32_t hosts, uint32_t local) {
    return Topology(std::vector<uint32_t>(hosts, local));
  }

  [[nodiscard]] uint32_t hosts() const { return static_cast<uint32_t>(first_.size()) - 1; }
  [[nodiscard]] uint32_t ranks() const { return first_.back(); }
  [[nodiscard]] uint32_t first(uint32_t host) const { return first_[host]; }
  [[nodiscard]] uint32_t local(uint32_t host) const { return first_[host + 1] - first_[host]; }
  /// Ranks on the smallest host: as many rails reach every host.
  [[nodiscard]] uint32_t fewest() const { return fewest_; }
  [[nodiscard]] bool equal() const { return equal_; }
  [[nodiscard]] uint32_t host_of(uint32_t rank) const {
    if (equal_) return rank / fewest_;
    return static_cast<uint32_t>(std::ranges::upper_bound(first_, rank) - first_.begin()) - 1;
  }

 private:
  std::vector<uint32_t> first_;  ///< first rank of each host, and the number of ranks
  uint32_t fewest_ = 1;
  bool equal_ = true;
};

}  // namespace horoacc::schedule
