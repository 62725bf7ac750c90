#include "runtime/sets/groups.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "runtime/job/job.h"

namespace horoacc {
Status Groups::Check(const std::vector<int>& ranks) const {
  const auto out_of_order = std::ranges::adjacent_find(ranks, std::greater_equal<>());
  if (ranks.empty() || out_of_order != ranks.end())
    return MakeError(ErrorKind::kInvalid, "a group's ranks must ascend, and there must be one");
  for (const int rank : ranks) {
    if (rank >= 0 && rank < job_.placement.size) continue;
    return MakeError(ErrorKind::kInvalid, "a group names rank " + std::to_string(rank) +
                                              " of a job of " +
                                              std::to_string(job_.placement.size));
  }
  if (std::ranges::find(ranks, job_.rank()) == ranks.end()) {
    return MakeError(ErrorKind::kInvalid,
                     "rank " + std::to_string(job_.rank()) + " is not a member of the group");
  }
  return {};
}

Result<uint32_t> Groups::Claim(const std::vector<int>& ranks) {
  HA_TRY(Check(ranks));
  // Of no other rank's claims, and of no earlier one of this rank's.
  const auto size = static_cast<uint32_t>(job_.placement.size);
  uint32_t id = 0;
  {
    std::lock_guard claiming(mutex_);
    if (claims_ >= kGroupBit / size) {
      return MakeError(ErrorKind::kInvalid,
                       "this rank has made " + std::to_string(claims_) + " groups already");
    }
    id = kGroupBit | (claims_++ * size + static_cast<uint32_t>(job_.rank()));
  }
  HA_TRY(Add(id, ranks));
  return id;
}

Status Groups::Join(uint32_t id, const std::vector<int>& ranks) {
  HA_TRY(Check(ranks));
  if (!IsGroup(id) || sets_.Find(id))
    return MakeError(ErrorKind::kInvalid, "there is no group " + std::to_string(id) + " to join");
  return Add(id, ranks);
}

Status Groups::Add(uint32_t id, const std::vector<int>& ranks) {
  if (job_.stopping.load(std::memory_order_acquire))
    return MakeError(ErrorKind::kAborted, "the engine has been shut down");
  std::lock_guard adding(mutex_);
  HA_ASSIGN(const uint32_t place, PlaceOf(id, ranks));
  sets_.Add(MakeProcessSet(job_, id, place, ranks));
  return {};
}

Result<uint32_t> Groups::PlaceOf(uint32_t id, const std::vector<int>& ranks) {
  const SegmentGuard guard(job_.control, job_.control.header().groups_lock,
                           static_cast<uint32_t>(job_.local_rank()), job_.lock_watch());
  HA_TRY(Status(guard.status()));
  const std::span<GroupPlace> places = job_.control.header().groups;
  const auto slot_of = [&](const auto& place) {
    return kMaxProcessSets + static_cast<uint32_t>(place - places.begin());
  };
  const auto known = std::ranges::find_if(
      places, [id](const GroupPlace& place) { return place.members > 0 && place.number == id; });
  if (known != places.end()) return slot_of(known);
  const auto free = std::ranges::find(places, 0u, &GroupPlace::members);
  if (free == places.end()) {
    return MakeError(ErrorKind::kInvalid,
                     "there are " + std::to_string(kMaxGroups) + " groups on this host already");
  }
  if (std::exchange(free->used, true)) job_.control.WipeSet(slot_of(free));
  free->number = id;
  free->members = static_cast<uint32_t>(std::ranges::count_if(
      ranks, [this](int rank) { return job_.LocalOf(rank) < job_.share.ranks.size(); }));
  return slot_of(free);
}

Status Groups::Leave(uint32_t id) {
  const std::shared_ptr<ProcessSet> set = sets_.Find(id);
  if (!set || !IsGroup(id)) return {};
  {
    std::lock_guard lock(set->queue.mutex);
    set->queue.removed.store(true);
  }
  set->control->cursor(set->context.me).left.store(1, std::memory_order_release);
  // Nothing that needs this rank is decided once the set has ended.
  HA_TRY(set->controller->End(SetEnd::Left(job_.rank())));
  if (set->multi_host) job_.multi_host->channel().LeaveGroup(set->id);
  set->context.ring_others(true);
  sets_.Remove(set, /*keep=*/true);
  return {};
}

}  // namespace horoacc
