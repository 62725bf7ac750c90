// Adding and removing process sets: every rank of the job takes part, through set 0.
#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kRefused = -1;
constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

Submission InSetZero(const std::string& what, Collective collective) {
  Submission submission;
  submission.name = "horoacc.process_set." + what;
  submission.request.collective = collective;
  return submission;
}

}  // namespace

// All ranks exchange what they were asked for, so that a disagreement is an error everywhere
// instead of two sets with one number. There is no deadline: a rank that came later would agree
// with itself alone. Dead peers and the stall watch end the wait. Returns the slots that are free
// on all ranks.
Result<uint64_t> Engine::AgreeOnSet(const std::string& what, int64_t number,
                                    const std::vector<int>& ranks, uint64_t free_slots) {
  std::vector<int64_t> mine(placement_.size + 2, -1);
  mine[0] = static_cast<int64_t>(free_slots);
  mine[1] = number;
  std::ranges::copy(ranks, mine.begin() + 2);
  Submission submission = InSetZero(what, Collective::kAllgather);
  submission.request.tensors = {{DType::kInt64, {static_cast<int64_t>(mine.size())}}};
  submission.buffers = {{mine.data(), nullptr}};
  HA_ASSIGN(const uint64_t handle, Submit(std::move(submission)));
  Status outcome = Wait(handle, kForEver);
  const std::shared_ptr<Entry> entry = Find(handle);
  Release(handle);
  HA_TRY(std::move(outcome));
  const auto* all = reinterpret_cast<const int64_t*>(entry->tensors[0].output);
  for (int rank = 0; rank < placement_.size; ++rank, all += mine.size()) {
    free_slots &= static_cast<uint64_t>(all[0]);
    if (std::equal(mine.begin() + 1, mine.end(), all + 1)) continue;
    const std::string text =
        all[1] == kRefused ? "rank " + std::to_string(rank) + " could not " + what + " its own"
                           : "rank " + std::to_string(placement_.rank) + " and rank " +
                                 std::to_string(rank) + " do not " + what + " the same ranks";
    return MakeError(ErrorKind::kInvalid, "process sets differ: " + text, rank);
  }
  return free_slots;
}

// A bad call takes part too: the other ranks wait for this one.
Error Engine::Refuse(const std::string& what, std::string reason) {
  const Result<uint64_t> agreed = AgreeOnSet(what, kRefused, {}, 0);
  // That the others asked for something else is no news; that a rank is lost is.
  if (!agreed.ok() && agreed.error().kind != ErrorKind::kInvalid) return agreed.error();
  return MakeError(ErrorKind::kInvalid, std::move(reason));
}

uint64_t Engine::FreeSlots() const {
  static_assert(kMaxProcessSets == 64);
  std::lock_guard lock(sets_mutex_);
  uint64_t taken = 0;
  for (size_t slot = 0; slot < sets_.size(); ++slot)
    taken |= uint64_t{sets_[slot] != nullptr} << slot;
  for (const auto& set : removed_sets_) taken |= uint64_t{1} << set->id % kMaxProcessSets;
  return ~taken;
}

// The number of the new set, which all ranks find alike.
Result<uint32_t> Engine::TakeSlot(uint64_t free_slots) {
  if (free_slots == 0) {
    return MakeError(ErrorKind::kInvalid,
                     "there are " + std::to_string(kMaxProcessSets) + " process sets already");
  }
  const auto slot = static_cast<uint32_t>(std::countr_zero(free_slots));
  const uint32_t uses = slot_uses_[slot]++;
  if (uses > 0) {
    if (share_.local_rank == 0) board_.WipeSet(slot);
    // Nobody looks at it before it is wiped.
    HA_ASSIGN(const uint64_t handle, Submit(InSetZero("wiped", Collective::kBarrier)));
    Status wiped = Wait(handle, kForEver);
    Release(handle);
    HA_TRY(std::move(wiped));
  }
  return uses * kMaxProcessSets + slot;
}

Result<uint32_t> Engine::AddProcessSet(std::vector<int> ranks) {
  std::lock_guard one_at_a_time(process_set_mutex_);
  if (ranks.empty()) return Refuse("add", "a process set needs at least one rank");
  std::ranges::sort(ranks);
  if (std::ranges::adjacent_find(ranks) != ranks.end())
    return Refuse("add", "a process set names a rank twice");
  if (ranks.front() < 0 || ranks.back() >= placement_.size) {
    return Refuse("add", "a process set names rank " +
                             std::to_string(ranks.front() < 0 ? ranks.front() : ranks.back()) +
                             " of a job of " + std::to_string(placement_.size));
  }
  std::string exists;
  {
    std::lock_guard lock(sets_mutex_);
    for (const auto& set : sets_) {
      if (set && set->ranks == ranks)
        exists = "a process set with these ranks exists: " + std::to_string(set->id);
    }
  }
  if (!exists.empty()) return Refuse("add", std::move(exists));
  HA_ASSIGN(const uint64_t free_slots, AgreeOnSet("add", 0, ranks, FreeSlots()));
  HA_ASSIGN(const uint32_t id, TakeSlot(free_slots));
  std::shared_ptr<ProcessSet> set = MakeSet(id, std::move(ranks));
  {
    std::lock_guard lock(sets_mutex_);
    const uint32_t slot = id % kMaxProcessSets;
    if (slot >= sets_.size()) sets_.resize(slot + 1);
    sets_[slot] = std::move(set);
  }
  bells_.WakeCoordinator(share_.local_rank);  // messages for the set may have come already
  return id;
}

Status Engine::RemoveProcessSet(uint32_t id) {
  std::lock_guard one_at_a_time(process_set_mutex_);
  const std::shared_ptr<ProcessSet> set = FindSet(id);
  if (!set || id == 0)
    return Refuse("remove", "process set " + std::to_string(id) + " cannot be removed");
  bool in_flight = false;
  {
    // A call is complete for its caller shortly before it is not pending any more.
    std::lock_guard lock(set->queue.mutex);
    in_flight = set->queue.pending.load() > 0;
  }
  if (in_flight)
    return Refuse("remove", "process set " + std::to_string(id) + " has calls in flight");
  HA_ASSIGN([[maybe_unused]] const uint64_t free_slots, AgreeOnSet("remove", id, set->ranks, 0));
  const bool member = std::ranges::find(set->ranks, placement_.rank) != set->ranks.end();
  if (member) {
    {
      std::lock_guard lock(set->queue.mutex);
      set->queue.removed.store(true);
    }
    // Calls that came in between end with an error, decided or not: nothing runs from here on.
    const SetBoard::Guard guard(*set->board);
    HA_TRY(Status(guard.status()));
    int32_t nobody = 0;
    set->board->header().gone.compare_exchange_strong(nobody, kSetRemoved);
  }
  {
    std::lock_guard lock(sets_mutex_);
    if (member) removed_sets_.push_back(set);
    sets_[id % kMaxProcessSets] = nullptr;
  }
  bells_.WakeCoordinator(share_.local_rank);
  return {};
}

}  // namespace horoacc
