#pragma once
// The process sets that this rank knows.
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/sets/process_set.h"

namespace horoacc {

using ProcessSets = std::vector<std::shared_ptr<ProcessSet>>;

/// A list that nothing changes any more: every turn of the driver takes one, and copies no list.
class FixedSets {
 public:
  FixedSets() : FixedSets(ProcessSets()) {}
  explicit FixedSets(ProcessSets sets)
      : sets_(std::make_shared<const ProcessSets>(std::move(sets))) {}
  [[nodiscard]] auto begin() const { return sets_->begin(); }
  [[nodiscard]] auto end() const { return sets_->end(); }
  [[nodiscard]] size_t size() const { return sets_->size(); }

 private:
  std::shared_ptr<const ProcessSets> sets_;
};

/// Any thread, unless said otherwise. A set that was removed stays until it is done.
class SetTable {
 public:
  explicit SetTable(const Job& job) : job_(job) {}

  [[nodiscard]] std::shared_ptr<ProcessSet> Find(uint32_t id) const;
  /// Those that this rank is a member of.
  [[nodiscard]] FixedSets Own() const;
  /// Own() and the removed ones that are not done. Removed ones that are done leave the table; the
  /// group's place is given back. Under the driver's lock.
  [[nodiscard]] FixedSets Driven();
  void Add(std::shared_ptr<ProcessSet> set);
  /// `keep`: this rank is a member, and drives the set until it is done.
  void Remove(const std::shared_ptr<ProcessSet>& set, bool keep);
  /// Empties the table, and returns everything that was in it.
  [[nodiscard]] ProcessSets TakeAll();

  // Of the sets that all ranks know, not of groups.
  [[nodiscard]] std::vector<uint32_t> Ids() const;
  [[nodiscard]] std::optional<uint32_t> FindByRanks(const std::vector<int>& ranks) const;
  /// A bit for each slot of the control segment that no set of this rank has.
  [[nodiscard]] uint64_t FreeSlots() const;
  [[nodiscard]] bool AnyRemoved() const;

 private:
  void FixOwn();

  const Job& job_;
  mutable std::mutex mutex_;
  ProcessSets sets_;     ///< by place; null where there is none
  FixedSets own_;        ///< of `sets_`
  ProcessSets removed_;  ///< not done when they were removed
};

}  // namespace horoacc
