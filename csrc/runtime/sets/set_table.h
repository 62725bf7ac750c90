#pragma once
// The process sets that this rank knows.
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/sets/process_set.h"

namespace horoacc {

/// Any thread, unless said otherwise. A set that was removed stays until it is done.
class SetTable {
 public:
  explicit SetTable(const Job& job) : job_(job) {}

  [[nodiscard]] std::shared_ptr<ProcessSet> Find(uint32_t id) const;
  /// Those that this rank is a member of.
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> Own() const;
  /// Own() and the removed ones that are not done. Removed ones that are done leave the table; the
  /// group's place is given back. Under the driver's lock.
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> Driven();
  void Add(std::shared_ptr<ProcessSet> set);
  /// `keep`: this rank is a member, and drives the set until it is done.
  void Remove(const std::shared_ptr<ProcessSet>& set, bool keep);
  /// Empties the table, and returns everything that was in it.
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> TakeAll();

  // Of the sets that all ranks know, not of groups.
  [[nodiscard]] std::vector<uint32_t> Ids() const;
  [[nodiscard]] std::optional<uint32_t> FindByRanks(const std::vector<int>& ranks) const;
  /// A bit for each slot of the control segment that no set of this rank has.
  [[nodiscard]] uint64_t FreeSlots() const;
  [[nodiscard]] bool AnyRemoved() const;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<ProcessSet>> OwnLocked() const;

  const Job& job_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<ProcessSet>> sets_;     ///< by place; null where there is none
  std::vector<std::shared_ptr<ProcessSet>> removed_;  ///< not done when they were removed
};

}  // namespace horoacc
