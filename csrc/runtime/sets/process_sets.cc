// Adding and removing process sets: every rank of the job takes part, through set 0.
#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "base/clock.h"
#include "runtime/engine/engine.h"
#include "runtime/sets/in_set_zero.h"

namespace horoacc {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
constexpr uint32_t kNoSet = std::numeric_limits<uint32_t>::max();
constexpr int64_t kDrainTurn = kSecond;
constexpr int kDrainTurns = 30;  // after which a removed set that keeps its place is an error
constexpr std::chrono::milliseconds kAskInterrupted(200);

// What a caller and the thread that runs its call share: either may be gone first.
template <typename T>
struct Answer {
  std::mutex mutex;
  std::condition_variable given;
  std::optional<Result<T>> result;
};

template <typename T, typename Call>
Result<T> RunAndAwait(TaskThreads& thread, Call call, const Engine::Interrupted& interrupted) {
  const auto answer = std::make_shared<Answer<T>>();
  thread.Post([answer, call = std::move(call)] {
    Result<T> result = call();
    std::lock_guard lock(answer->mutex);
    answer->result.emplace(std::move(result));
    answer->given.notify_one();
  });
  std::unique_lock lock(answer->mutex);
  const auto given = [&] { return answer->result.has_value(); };
  while (!answer->given.wait_for(lock, kAskInterrupted, given)) {
    lock.unlock();
    if (interrupted && interrupted())
      return MakeError(ErrorKind::kTimeout, "interrupted while waiting for the other ranks");
    lock.lock();
  }
  return std::move(*answer->result);
}

}  // namespace

uint64_t Engine::FreeSlots() const {
  static_assert(kMaxProcessSets == 64);
  std::lock_guard lock(sets_mutex_);
  uint64_t taken = 0;
  for (size_t slot = 0; slot < std::min<size_t>(sets_.size(), kMaxProcessSets); ++slot)
    taken |= uint64_t{sets_[slot] != nullptr} << slot;
  for (const auto& set : removed_sets_) {
    if (!IsGroup(set->id)) taken |= uint64_t{1} << set->place;
  }
  return ~taken;
}

size_t Engine::CountSets() const {
  std::lock_guard lock(sets_mutex_);
  return std::ranges::count_if(sets_, [](const auto& set) { return set && !IsGroup(set->id); });
}

// A removed set keeps its place until nothing of it goes on here; the coordinator sees to that.
void Engine::AwaitRemovedSets() const {
  const auto any_left = [this] {
    std::lock_guard lock(sets_mutex_);
    return std::ranges::any_of(removed_sets_, [](const auto& set) { return !IsGroup(set->id); });
  };
  const int64_t deadline = NowNs() + kDrainTurn;
  while (any_left() && NowNs() < deadline && !stopping_.load(std::memory_order_acquire))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The place of the new set, which all ranks find alike.
Result<Engine::TakenSlot> Engine::TakeSlot(const std::vector<int>& ranks, Claim claim) {
  uint64_t free_slots = 0;
  // Every rank has as many sets as the others (groups apart), so all of them ask again or none
  // does.
  for (int turn = 0; free_slots == 0; ++turn) {
    if (turn > 0) AwaitRemovedSets();
    HA_ASSIGN(SetAgreement agreed, AgreeOnSet(SetChange::kAdd, claim, ranks, FreeSlots()));
    if (!agreed.parts.empty()) return TakenSlot{0, std::move(agreed.parts)};
    free_slots = agreed.free_slots;
    if (free_slots != 0 || (CountSets() < kMaxProcessSets && turn < kDrainTurns)) continue;
    return MakeError(ErrorKind::kInvalid,
                     "there are " + std::to_string(kMaxProcessSets) + " process sets already");
  }
  const auto slot = static_cast<uint32_t>(std::countr_zero(free_slots));
  const uint32_t uses = slot_uses_[slot]++;
  if (uses > 0) {
    if (multi_host_) multi_host_->control().WipeSet(slot);
    if (!multi_host_ && share_.local_rank == 0) control_.WipeSet(slot);
    // Nobody looks at it before it is wiped.
    HA_ASSIGN(const uint64_t handle,
              Submit(InSetZero("horoacc.process_set.wiped", Collective::kBarrier)));
    Status wiped = Wait(handle, kForEver);
    Release(handle);
    HA_TRY(std::move(wiped));
  }
  return TakenSlot{uses * kMaxProcessSets + slot, {}};
}

Result<uint32_t> Engine::AddProcessSet(std::vector<int> ranks, Claim claim,
                                       const Interrupted& interrupted) {
  return RunAndAwait<uint32_t>(
      set_calls_, [this, ranks = std::move(ranks), claim] { return AddAgreedSet(ranks, claim); },
      interrupted);
}

Status Engine::RemoveProcessSet(uint32_t id, Claim claim, const Interrupted& interrupted) {
  return RunAndAwait<void>(
      set_calls_, [this, id, claim] { return RemoveAgreedSet(id, claim); }, interrupted);
}

std::optional<uint32_t> Engine::FindSetOf(const std::vector<int>& ranks) const {
  std::lock_guard lock(sets_mutex_);
  for (const auto& set : sets_) {
    if (set && !IsGroup(set->id) && set->ranks == ranks) return set->id;
  }
  return std::nullopt;
}

// One set after the other, on all ranks in the same order. Gives the number of this rank's own.
Result<uint32_t> Engine::AddParts(const std::vector<std::vector<int>>& parts,
                                  const std::vector<int>& own) {
  uint32_t own_id = 0;
  std::vector<uint32_t> added;
  for (const std::vector<int>& part : parts) {
    const Result<uint32_t> id = AddAgreedSet(part, Claim::kWhole);
    if (!id.ok()) {
      for (const uint32_t earlier : added) HA_TRY(RemoveAgreedSet(earlier, Claim::kWhole));
      return id.error();
    }
    added.push_back(id.value());
    if (part == own) own_id = id.value();
  }
  return own_id;
}

Result<uint32_t> Engine::AddAgreedSet(std::vector<int> ranks, Claim claim) {
  if (ranks.empty()) return Refuse(SetChange::kAdd, "a process set needs at least one rank");
  std::ranges::sort(ranks);
  if (std::ranges::adjacent_find(ranks) != ranks.end())
    return Refuse(SetChange::kAdd, "a process set names a rank twice");
  if (ranks.front() < 0 || ranks.back() >= placement_.size) {
    return Refuse(SetChange::kAdd,
                  "a process set names rank " +
                      std::to_string(ranks.front() < 0 ? ranks.front() : ranks.back()) +
                      " of a job of " + std::to_string(placement_.size));
  }
  if (const std::optional<uint32_t> found = FindSetOf(ranks)) {
    return Refuse(SetChange::kAdd,
                  "a process set with these ranks exists: " + std::to_string(*found));
  }
  HA_ASSIGN(const TakenSlot taken, TakeSlot(ranks, claim));
  if (!taken.parts.empty()) return AddParts(taken.parts, ranks);
  const uint32_t id = taken.id;
  std::shared_ptr<ProcessSet> set = MakeSet(id, std::move(ranks));
  {
    std::lock_guard lock(sets_mutex_);
    const uint32_t slot = SlotOf(id);
    if (slot >= sets_.size()) sets_.resize(slot + 1);
    sets_[slot] = std::move(set);
  }
  doorbells_.WakeCoordinator(share_.local_rank);  // messages for the set may have come already
  return id;
}

Status Engine::RemoveAgreedSet(uint32_t id, Claim claim) {
  const std::shared_ptr<ProcessSet> set = FindSet(id);
  if (!set || IsGroup(id))
    return Refuse(SetChange::kRemove, "a process set that is not registered cannot be removed");
  if (id == 0)
    return Refuse(SetChange::kRemove, "process set " + std::to_string(id) + " cannot be removed");
  bool in_flight = false;
  {
    // A call is complete for its caller shortly before it is not pending any more.
    std::lock_guard lock(set->queue.mutex);
    in_flight = set->queue.pending.load() > 0;
  }
  if (in_flight)
    return Refuse(SetChange::kRemove, "process set " + std::to_string(id) + " has calls in flight");
  HA_ASSIGN(const SetAgreement agreed, AgreeOnSet(SetChange::kRemove, claim, set->ranks, 0));
  for (const std::vector<int>& part : agreed.parts) {
    // A part that nobody knows as a set is a disagreement of all ranks with none.
    const std::optional<uint32_t> found = FindSetOf(part);
    HA_TRY(RemoveAgreedSet(found.value_or(kNoSet), Claim::kWhole));
  }
  if (!agreed.parts.empty()) return {};
  const bool member = std::ranges::find(set->ranks, placement_.rank) != set->ranks.end();
  if (member) {
    {
      std::lock_guard lock(set->queue.mutex);
      set->queue.removed.store(true);
    }
    // Calls that came in between end with an error, decided or not: nothing runs from here on.
    const SetSegment::Guard guard(*set->control);
    HA_TRY(Status(guard.status()));
    SetEnd none;
    set->control->header().end.compare_exchange_strong(none, SetEnd::Removed());
  }
  {
    std::lock_guard lock(sets_mutex_);
    if (member) removed_sets_.push_back(set);
    sets_[SlotOf(id)] = nullptr;
  }
  doorbells_.WakeCoordinator(share_.local_rank);
  return {};
}

}  // namespace horoacc
