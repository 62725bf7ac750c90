#pragma once
// The names that one process set has met on this rank.
#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>

#include "queue/entry.h"

namespace horoacc {

/// By which ranks match a group, given the name of its first tensor: without the number of its
/// tensors, so that ranks that disagree about it hear of it instead of waiting for each other.
[[nodiscard]] inline std::string GroupName(const std::string& first) {
  const size_t suffix = first.rfind("_1of");
  return suffix == std::string::npos ? first : first.substr(0, suffix) + " (group)";
}

/// By name as submitted: what holds it, and the id of what ranks match it by. A record stays where
/// it is until it is swept. A script may make up new names for ever; what nobody uses can be looked
/// up on the control segment again.
class Names {
 public:
  NameRecord& Find(const std::string& name) {
    const auto found = records_.find(name);
    if (found != records_.end()) return found->second;
    if (records_.size() >= sweep_at_) {
      std::erase_if(records_, [](const auto& item) {
        return item.second.held_by == 0 && item.second.calls == 0;
      });
      sweep_at_ = std::max(kSweepAt, 2 * records_.size());
    }
    return records_[name];
  }
  [[nodiscard]] size_t size() const { return records_.size(); }

  static constexpr size_t kSweepAt = 32768;

 private:
  std::unordered_map<std::string, NameRecord> records_;
  size_t sweep_at_ = kSweepAt;
};

}  // namespace horoacc
