#pragma once
// The names that one process set has met on this rank.
#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

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
  /// Of a call that is submitted. A step's calls come in the order of the step before, so that the
  /// record that followed the last one is looked at first.
  NameRecord& Submitted(const std::string& name) {
    Item* const expected = last_ ? last_->second.followed_by : nullptr;
    if (expected && expected->first == name) {
      last_ = expected;
    } else {
      Item& found = FindItem(name);  // which may sweep
      if (last_) last_->second.followed_by = &found;
      last_ = &found;
    }
    return last_->second;
  }
  /// The record of the call that will probably be submitted next, on its way to the cache; or null.
  [[nodiscard]] const NameRecord* Prefetched() const {
    const Item* const next = last_->second.followed_by;
    if (!next) return nullptr;
    __builtin_prefetch(next->first.data());
    if (const Item* const after = next->second.followed_by) {
      __builtin_prefetch(after);
      __builtin_prefetch(static_cast<const void*>(&after->second.followed_by));
    }
    return &next->second;
  }
  NameRecord& Find(const std::string& name) { return FindItem(name).second; }
  [[nodiscard]] size_t size() const { return records_.size(); }

  static constexpr size_t kSweepAt = 32768;

 private:
  using Item = std::pair<const std::string, NameRecord>;

  Item& FindItem(const std::string& name) {
    const auto found = records_.find(name);
    if (found != records_.end()) return *found;
    if (records_.size() >= sweep_at_) {
      std::erase_if(records_, [](const auto& item) {
        return item.second.held_by == 0 && item.second.calls == 0;
      });
      for (auto& [kept, record] : records_) record.followed_by = nullptr;
      last_ = nullptr;
      sweep_at_ = std::max(kSweepAt, 2 * records_.size());
    }
    return *records_.try_emplace(name).first;
  }

  std::unordered_map<std::string, NameRecord> records_;
  Item* last_ = nullptr;  ///< of the latest submission
  size_t sweep_at_ = kSweepAt;
};

}  // namespace horoacc
