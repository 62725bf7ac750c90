// Adding and removing process sets: every rank of the job takes part, through set 0.
#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "base/clock.h"
#include "runtime/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kRefused = -1;
constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
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

Submission InSetZero(std::string name, Collective collective) {
  Submission submission;
  submission.name = std::move(name);
  submission.request.collective = collective;
  return submission;
}

}  // namespace

const char* Engine::VerbOf(SetChange change) {
  return change == SetChange::kAdd ? "add" : "remove";
}

// All ranks exchange what they were asked for, so that a disagreement is an error everywhere
// instead of two sets with one number. Additions and removals meet under one name, so that one of
// each is a disagreement, too. There is no deadline: a rank that came later would agree with itself
// alone. Dead peers and the stall watch end the wait, and a caller whom a signal calls away leaves
// it to set_calls_. Returns the slots that are free on all ranks.
Result<uint64_t> Engine::AgreeOnSet(SetChange change, int64_t number, const std::vector<int>& ranks,
                                    uint64_t free_slots) {
  std::vector<int64_t> mine(placement_.size + 3, -1);
  mine[0] = static_cast<int64_t>(free_slots);
  mine[1] = static_cast<int64_t>(change);
  mine[2] = number;
  std::ranges::copy(ranks, mine.begin() + 3);
  Submission submission = InSetZero("horoacc.process_set", Collective::kAllgather);
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
    const std::string here = "rank " + std::to_string(placement_.rank);
    const std::string there = "rank " + std::to_string(rank);
    std::string text;
    if (all[1] != mine[1]) {
      text = here + " was asked to " + VerbOf(change) + " one, " + there + " to " +
             VerbOf(static_cast<SetChange>(all[1])) + " one";
    } else if (all[2] == kRefused) {
      text = there + " could not " + VerbOf(change) + " its own";
    } else {
      text = here + " and " + there + " do not " + VerbOf(change) + " the same ranks";
    }
    return MakeError(ErrorKind::kInvalid, "process sets differ: " + text, rank);
  }
  return free_slots;
}

// A bad call takes part too: the other ranks wait for this one. The error names this rank as the
// culprit unless all ranks made a bad call.
Error Engine::Refuse(SetChange change, std::string reason) {
  const Result<uint64_t> agreed = AgreeOnSet(change, kRefused, {}, 0);
  if (agreed.ok()) return MakeError(ErrorKind::kInvalid, std::move(reason));
  // That the others asked for something else is no news; that a rank is lost is.
  if (agreed.error().kind != ErrorKind::kInvalid) return agreed.error();
  return MakeError(ErrorKind::kInvalid, std::move(reason), placement_.rank);
}

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

// The number of the new set, which all ranks find alike.
Result<uint32_t> Engine::TakeSlot(const std::vector<int>& ranks) {
  uint64_t free_slots = 0;
  // Every rank has as many sets as the others (groups apart), so all of them ask again or none
  // does.
  for (int turn = 0; free_slots == 0; ++turn) {
    if (turn > 0) AwaitRemovedSets();
    HA_ASSIGN(free_slots, AgreeOnSet(SetChange::kAdd, 0, ranks, FreeSlots()));
    if (free_slots != 0 || (CountSets() < kMaxProcessSets && turn < kDrainTurns)) continue;
    return MakeError(ErrorKind::kInvalid,
                     "there are " + std::to_string(kMaxProcessSets) + " process sets already");
  }
  const auto slot = static_cast<uint32_t>(std::countr_zero(free_slots));
  const uint32_t uses = slot_uses_[slot]++;
  if (uses > 0) {
    if (spread_) spread_->board().WipeSet(slot);
    if (!spread_ && share_.local_rank == 0) board_.WipeSet(slot);
    // Nobody looks at it before it is wiped.
    HA_ASSIGN(const uint64_t handle,
              Submit(InSetZero("horoacc.process_set.wiped", Collective::kBarrier)));
    Status wiped = Wait(handle, kForEver);
    Release(handle);
    HA_TRY(std::move(wiped));
  }
  return uses * kMaxProcessSets + slot;
}

Result<uint32_t> Engine::AddProcessSet(std::vector<int> ranks, const Interrupted& interrupted) {
  return RunAndAwait<uint32_t>(
      set_calls_, [this, ranks = std::move(ranks)] { return AddAgreedSet(ranks); }, interrupted);
}

Status Engine::RemoveProcessSet(uint32_t id, const Interrupted& interrupted) {
  return RunAndAwait<void>(set_calls_, [this, id] { return RemoveAgreedSet(id); }, interrupted);
}

Result<uint32_t> Engine::AddAgreedSet(std::vector<int> ranks) {
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
  std::string exists;
  {
    std::lock_guard lock(sets_mutex_);
    for (const auto& set : sets_) {
      if (set && !IsGroup(set->id) && set->ranks == ranks)
        exists = "a process set with these ranks exists: " + std::to_string(set->id);
    }
  }
  if (!exists.empty()) return Refuse(SetChange::kAdd, std::move(exists));
  HA_ASSIGN(const uint32_t id, TakeSlot(ranks));
  std::shared_ptr<ProcessSet> set = MakeSet(id, std::move(ranks));
  {
    std::lock_guard lock(sets_mutex_);
    const uint32_t slot = SlotOf(id);
    if (slot >= sets_.size()) sets_.resize(slot + 1);
    sets_[slot] = std::move(set);
  }
  bells_.WakeCoordinator(share_.local_rank);  // messages for the set may have come already
  return id;
}

Status Engine::RemoveAgreedSet(uint32_t id) {
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
  HA_ASSIGN([[maybe_unused]] const uint64_t free_slots,
            AgreeOnSet(SetChange::kRemove, id, set->ranks, 0));
  const bool member = std::ranges::find(set->ranks, placement_.rank) != set->ranks.end();
  if (member) {
    {
      std::lock_guard lock(set->queue.mutex);
      set->queue.removed.store(true);
    }
    // Calls that came in between end with an error, decided or not: nothing runs from here on.
    const SetBoard::Guard guard(*set->board);
    HA_TRY(Status(guard.status()));
    SetEnd none;
    set->board->header().end.compare_exchange_strong(none, SetEnd::Removed());
  }
  {
    std::lock_guard lock(sets_mutex_);
    if (member) removed_sets_.push_back(set);
    sets_[SlotOf(id)] = nullptr;
  }
  bells_.WakeCoordinator(share_.local_rank);
  return {};
}

}  // namespace horoacc
