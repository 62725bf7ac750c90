#include "runtime/sets/groups.h"

#include <algorithm>
#include <functional>

#include "runtime/job/job.h"

namespace horoacc {
namespace {

constexpr uint64_t kMembers = 0xffff;
constexpr uint64_t kOneUse = kMembers + 1;

}  // namespace

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
  if (job_.multi_host) {
    HA_ASSIGN(const uint32_t id, job_.multi_host->ClaimGroupNumber());
    HA_TRY(Add(id, ranks));
    return id;
  }
  for (uint32_t place = 0; place < kMaxGroups; ++place) {
    std::atomic<uint64_t>& word = job_.control.header().groups[place];
    uint64_t seen = word.load(std::memory_order_acquire);
    if ((seen & kMembers) != 0) continue;
    const uint64_t claimed = seen + kOneUse + ranks.size();
    if (!word.compare_exchange_strong(seen, claimed, std::memory_order_acq_rel)) {
      --place;  // another rank took it, or gave it back: look again
      continue;
    }
    const uint64_t uses = seen / kOneUse;
    // No other rank knows the group before this rank has told them its number.
    if (uses > 0) job_.control.WipeSet(kMaxProcessSets + place);
    const auto number = static_cast<uint32_t>(uses * kMaxGroups + place) % kGroupBit;
    HA_TRY(Add(kGroupBit | number, ranks));
    return kGroupBit | number;
  }
  return MakeError(ErrorKind::kInvalid,
                   "there are " + std::to_string(kMaxGroups) + " groups on this host already");
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
  uint32_t place = SlotOf(id);
  if (job_.multi_host) {
    HA_ASSIGN(place, sets_.FreeGroupPlace());
    job_.multi_host->control().WipeSet(place);
  }
  sets_.Add(MakeProcessSet(job_, id, place, ranks));
  return {};
}

Status Groups::Leave(uint32_t id) {
  const std::shared_ptr<ProcessSet> set = sets_.Find(id);
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
    set->control->header().end.compare_exchange_strong(none, SetEnd::Left(job_.rank()));
  }
  if (set->multi_host_controller) HA_TRY(set->multi_host_controller->SayLeft());
  set->context.ring_others(true);
  sets_.Remove(set, /*keep=*/true);
  return {};
}

}  // namespace horoacc
