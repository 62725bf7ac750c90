// Process sets that only their members know of.
#include <algorithm>
#include <functional>

#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr uint64_t kMembers = 0xffff;
constexpr uint64_t kOneUse = kMembers + 1;

}  // namespace

Status Engine::CheckGroup(const std::vector<int>& ranks) const {
  const auto out_of_order = std::ranges::adjacent_find(ranks, std::greater_equal<>());
  if (ranks.empty() || out_of_order != ranks.end())
    return MakeError(ErrorKind::kInvalid, "a group's ranks must ascend, and there must be one");
  for (const int rank : ranks) {
    if (rank >= 0 && rank < placement_.size) continue;
    return MakeError(ErrorKind::kInvalid, "a group names rank " + std::to_string(rank) +
                                              " of a job of " + std::to_string(placement_.size));
  }
  if (std::ranges::find(ranks, placement_.rank) == ranks.end()) {
    return MakeError(ErrorKind::kInvalid,
                     "rank " + std::to_string(placement_.rank) + " is not a member of the group");
  }
  return {};
}

Result<uint32_t> Engine::ClaimGroup(const std::vector<int>& ranks) {
  HA_TRY(CheckGroup(ranks));
  if (multi_host_) {
    HA_ASSIGN(const uint32_t id, multi_host_->ClaimGroupNumber());
    HA_TRY(AddGroup(id, ranks));
    return id;
  }
  for (uint32_t place = 0; place < kMaxGroups; ++place) {
    std::atomic<uint64_t>& word = control_.header().groups[place];
    uint64_t seen = word.load(std::memory_order_acquire);
    if ((seen & kMembers) != 0) continue;
    const uint64_t claimed = seen + kOneUse + ranks.size();
    if (!word.compare_exchange_strong(seen, claimed, std::memory_order_acq_rel)) {
      --place;  // somebody took it, or gave it back: look again
      continue;
    }
    const uint64_t uses = seen / kOneUse;
    // Nobody else knows of it before this rank has told its number.
    if (uses > 0) control_.WipeSet(kMaxProcessSets + place);
    const auto number = static_cast<uint32_t>(uses * kMaxGroups + place) % kGroupBit;
    HA_TRY(AddGroup(kGroupBit | number, ranks));
    return kGroupBit | number;
  }
  return MakeError(ErrorKind::kInvalid,
                   "there are " + std::to_string(kMaxGroups) + " groups on this host already");
}

Status Engine::JoinGroup(uint32_t id, const std::vector<int>& ranks) {
  HA_TRY(CheckGroup(ranks));
  if (!IsGroup(id) || FindSet(id))
    return MakeError(ErrorKind::kInvalid, "there is no group " + std::to_string(id) + " to join");
  return AddGroup(id, ranks);
}

Status Engine::AddGroup(uint32_t id, const std::vector<int>& ranks) {
  if (stopping_.load(std::memory_order_acquire))
    return MakeError(ErrorKind::kAborted, "the engine has been shut down");
  std::lock_guard adding(groups_mutex_);
  HA_ASSIGN(const uint32_t place, PlaceOfGroup(id));
  std::shared_ptr<ProcessSet> set = MakeSet(id, place, ranks);
  {
    std::lock_guard lock(sets_mutex_);
    if (place >= sets_.size()) sets_.resize(place + 1);
    sets_[place] = std::move(set);
  }
  doorbells_.WakeCoordinator(share_.local_rank);  // the others may be waiting for this rank already
  return {};
}

// Between hosts a group has any place that is free here: nobody else looks at this rank's control
// segment.
Result<uint32_t> Engine::PlaceOfGroup(uint32_t id) const {
  if (!multi_host_) return SlotOf(id);
  std::lock_guard lock(sets_mutex_);
  for (uint32_t place = kMaxProcessSets; place < kSegmentSets; ++place) {
    const bool taken =
        (place < sets_.size() && sets_[place]) ||
        std::ranges::any_of(removed_sets_, [&](const auto& set) { return set->place == place; });
    if (taken) continue;
    multi_host_->control().WipeSet(place);
    return place;
  }
  return MakeError(ErrorKind::kInvalid,
                   "this rank is in " + std::to_string(kMaxGroups) + " groups already");
}

Status Engine::LeaveGroup(uint32_t id) {
  const std::shared_ptr<ProcessSet> set = FindSet(id);
  if (!set || !IsGroup(id)) return {};
  {
    std::lock_guard lock(set->queue.mutex);
    set->queue.removed.store(true);
  }
  {
    // Nothing that needs this rank is decided from here on.
    const SetSegment::Guard guard(*set->control);
    HA_TRY(Status(guard.status()));
    set->control->cursor(set->context.me).left.store(1, std::memory_order_release);
    SetEnd none;
    set->control->header().end.compare_exchange_strong(none, SetEnd::Left(placement_.rank));
  }
  if (set->multi_host_controller) HA_TRY(set->multi_host_controller->SayLeft());
  set->context.ring_others(true);
  {
    std::lock_guard lock(sets_mutex_);
    removed_sets_.push_back(set);
    sets_[set->place] = nullptr;
  }
  doorbells_.WakeCoordinator(share_.local_rank);
  return {};
}

// The last member to be done with a group frees its place.
void Engine::ReturnGroup(uint32_t id) {
  if (multi_host_) return;
  control_.header().groups[SlotOf(id) - kMaxProcessSets].fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace horoacc
