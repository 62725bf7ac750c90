#include "runtime/sets/set_table.h"

#include <algorithm>
#include <iterator>

#include "runtime/job/job.h"

namespace horoacc {

std::shared_ptr<ProcessSet> SetTable::Find(uint32_t id) const {
  std::lock_guard lock(mutex_);
  const auto has_id = [id](const auto& set) { return set && set->id == id; };
  if (IsGroup(id)) {
    const auto found = std::ranges::find_if(sets_, has_id);
    return found != sets_.end() ? *found : nullptr;
  }
  const uint32_t slot = SlotOf(id);
  return slot < sets_.size() && has_id(sets_[slot]) ? sets_[slot] : nullptr;
}

FixedSets SetTable::Own() const {
  std::lock_guard lock(mutex_);
  return own_;
}

// Under the lock, after each change.
void SetTable::FixOwn() {
  ProcessSets own;
  std::ranges::copy_if(sets_, std::back_inserter(own),
                       [this](const auto& set) { return set && set->Has(job_.rank()); });
  own_ = FixedSets(std::move(own));
}

FixedSets SetTable::Driven() {
  ProcessSets sets;
  ProcessSets removed;
  {
    std::lock_guard lock(mutex_);
    if (removed_.empty()) return own_;
    sets.assign(own_.begin(), own_.end());
    removed = removed_;
  }
  for (const auto& set : removed) {
    // `removed` and `removed_` are two references. Another thread that has a third may be about to
    // look at the set's place in the control segment, which must not be another set's by then. No
    // thread can get a new reference.
    const bool held = set.use_count() > 2;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (held || !set->done()) {
      sets.push_back(set);
      continue;
    }
    set->gpu_group.reset();  // its words in the control segment are pinned
    if (IsGroup(set->id)) {
      // The last member of the host that is done with a group frees its place.
      const SegmentGuard guard(job_.control, job_.control.header().groups_lock,
                               static_cast<uint32_t>(job_.local_rank()), job_.lock_watch());
      if (guard.status().ok()) --job_.control.header().groups[set->place - kMaxProcessSets].members;
    }
    std::lock_guard lock(mutex_);
    std::erase(removed_, set);
  }
  return FixedSets(std::move(sets));
}

void SetTable::Add(std::shared_ptr<ProcessSet> set) {
  {
    std::lock_guard lock(mutex_);
    if (set->place >= sets_.size()) sets_.resize(set->place + 1);
    sets_[set->place] = std::move(set);
    FixOwn();
  }
  job_.WakeCoordinator();  // messages for the set may have come already
}

void SetTable::Remove(const std::shared_ptr<ProcessSet>& set, bool keep) {
  {
    std::lock_guard lock(mutex_);
    if (keep) removed_.push_back(set);
    sets_[set->place] = nullptr;
    FixOwn();
  }
  job_.WakeCoordinator();
}

ProcessSets SetTable::TakeAll() {
  std::lock_guard lock(mutex_);
  ProcessSets all = std::exchange(sets_, {});
  FixOwn();
  std::erase(all, nullptr);
  all.insert(all.end(), removed_.begin(), removed_.end());
  removed_.clear();
  return all;
}

std::vector<uint32_t> SetTable::Ids() const {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> ids;
  for (const auto& set : sets_) {
    if (set && !IsGroup(set->id)) ids.push_back(set->id);
  }
  return ids;
}

std::optional<uint32_t> SetTable::FindByRanks(const std::vector<int>& ranks) const {
  std::lock_guard lock(mutex_);
  for (const auto& set : sets_) {
    if (set && !IsGroup(set->id) && set->ranks == ranks) return set->id;
  }
  return std::nullopt;
}

uint64_t SetTable::FreeSlots() const {
  static_assert(kMaxProcessSets == 64);
  std::lock_guard lock(mutex_);
  uint64_t taken = 0;
  for (size_t slot = 0; slot < std::min<size_t>(sets_.size(), kMaxProcessSets); ++slot)
    taken |= uint64_t{sets_[slot] != nullptr} << slot;
  for (const auto& set : removed_) {
    if (!IsGroup(set->id)) taken |= uint64_t{1} << set->place;
  }
  return ~taken;
}

bool SetTable::AnyRemoved() const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(removed_, [](const auto& set) { return !IsGroup(set->id); });
}

}  // namespace horoacc
