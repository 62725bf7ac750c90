#include "runtime/sets/set_changes.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "runtime/job/job.h"

namespace horoacc {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
constexpr uint32_t kNoSet = std::numeric_limits<uint32_t>::max();
constexpr int64_t kDrainTurn = kSecond;
constexpr int kDrainTurns = 30;  // after which a removed set that keeps its place is an error
constexpr std::chrono::milliseconds kAskInterrupted(200);

// Shared by a caller and the thread that runs its call; either may end first.
template <typename T>
struct Answer {
  std::mutex mutex;
  std::condition_variable given;
  std::optional<Result<T>> result;
};

template <typename T, typename Call>
Result<T> RunAndAwait(TaskThreads& thread, Call call, const Interrupted& interrupted) {
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

// What a rank says: the slots that it has free, what it was asked for, and the ranks, padded.
enum Field : size_t { kFreeSlots, kChange, kClaim, kRanks };
constexpr int64_t kNoRank = -1;

std::vector<int> RanksOf(const int64_t* said, int size) {
  const int64_t* const begin = said + kRanks;
  return {begin, std::find(begin, begin + size, kNoRank)};
}

// The distinct sets by their first rank, if every rank named one that it is in, and so did all in
// it; else none.
std::vector<std::vector<int>> PartsOf(const std::vector<std::vector<int>>& named) {
  std::vector<std::vector<int>> parts;
  for (size_t rank = 0; rank < named.size(); ++rank) {
    const std::vector<int>& own = named[rank];
    if (std::ranges::find(own, static_cast<int>(rank)) == own.end()) return {};
    if (!std::ranges::all_of(own, [&](int other) { return named[other] == own; })) return {};
    if (own.front() == static_cast<int>(rank)) parts.push_back(own);
  }
  return parts;
}

Submission InSetZero(std::string name, Collective collective) {
  Submission submission;
  submission.name = std::move(name);
  submission.request.collective = collective;
  return submission;
}

}  // namespace

const char* SetChanges::VerbOf(SetChange change) {
  return change == SetChange::kAdd ? "add" : "remove";
}

// All ranks exchange what they were asked for, so that a disagreement is an error everywhere
// instead of two sets with one number. Additions and removals meet under one name, so that one of
// each is a disagreement, too. There is no deadline: a rank that came later would agree with itself
// alone. Dead peers and the stall watch end the wait; a caller that a signal interrupts leaves the
// wait to thread_.
Result<SetChanges::SetAgreement> SetChanges::AgreeOnSet(SetChange change, Claim claim,
                                                        const std::vector<int>& ranks,
                                                        uint64_t free_slots) {
  std::vector<int64_t> mine(job_.placement.size + kRanks, kNoRank);
  mine[kFreeSlots] = static_cast<int64_t>(free_slots);
  mine[kChange] = static_cast<int64_t>(change);
  mine[kClaim] = static_cast<int64_t>(claim);
  std::ranges::copy(ranks, mine.begin() + kRanks);
  Submission submission = InSetZero("horoacc.process_set", Collective::kAllgather);
  submission.request.tensors = {{DType::kInt64, {static_cast<int64_t>(mine.size())}}};
  submission.buffers = {{mine.data(), nullptr}};
  HA_ASSIGN(const uint64_t handle, calls_.Submit(std::move(submission)));
  Status outcome = calls_.Wait(handle, kForEver);
  const std::shared_ptr<Entry> entry = calls_.Find(handle);
  calls_.Release(handle);
  HA_TRY(std::move(outcome));
  const auto* const all = reinterpret_cast<const int64_t*>(entry->tensors[0].output);
  std::vector<std::vector<int>> named;
  int other = -1;  // the first that was asked for something else
  bool own_parts = true;
  for (int rank = 0; rank < job_.placement.size; ++rank) {
    const int64_t* const said = all + rank * mine.size();
    free_slots &= static_cast<uint64_t>(said[kFreeSlots]);
    own_parts &= said[kChange] == mine[kChange] && Claim{said[kClaim]} == Claim::kOwnPart;
    named.push_back(RanksOf(said, job_.placement.size));
    const bool alike = said[kChange] == mine[kChange] && named.back() == ranks &&
                       (Claim{said[kClaim]} == Claim::kRefused) == (claim == Claim::kRefused);
    if (!alike && other < 0) other = rank;
  }
  if (other < 0) return SetAgreement{free_slots, {}};
  if (own_parts) {
    std::vector<std::vector<int>> parts = PartsOf(named);
    if (!parts.empty()) return SetAgreement{free_slots, std::move(parts)};
  }
  const int64_t* const said = all + other * mine.size();
  const std::string here = "rank " + std::to_string(job_.rank());
  const std::string there = "rank " + std::to_string(other);
  std::string text;
  if (said[kChange] != mine[kChange]) {
    text = here + " was asked to " + VerbOf(change) + " one, " + there + " to " +
           VerbOf(static_cast<SetChange>(said[kChange])) + " one";
  } else if (Claim{said[kClaim]} == Claim::kRefused) {
    text = there + " could not " + VerbOf(change) + " its own";
  } else {
    text = here + " and " + there + " do not " + VerbOf(change) + " the same ranks";
  }
  return MakeError(ErrorKind::kInvalid, "process sets differ: " + text, other);
}

// A bad call takes part too: the other ranks wait for this one. The error names this rank as the
// culprit unless all ranks made a bad call.
Error SetChanges::Refuse(SetChange change, std::string reason) {
  const Result<SetAgreement> agreed = AgreeOnSet(change, Claim::kRefused, {}, 0);
  if (agreed.ok()) return MakeError(ErrorKind::kInvalid, std::move(reason));
  // A disagreement adds nothing to `reason`; the loss of a rank does.
  if (agreed.error().kind != ErrorKind::kInvalid) return agreed.error();
  return MakeError(ErrorKind::kInvalid, std::move(reason), job_.rank());
}

// A removed set keeps its place until nothing of it goes on here; the coordinator sees to that.
void SetChanges::AwaitRemovedSets() const {
  const int64_t deadline = NowNs() + kDrainTurn;
  while (sets_.AnyRemoved() && NowNs() < deadline && !job_.stopping.load(std::memory_order_acquire))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The slot of the new set; all ranks take the same one.
Result<SetChanges::TakenSlot> SetChanges::TakeSlot(const std::vector<int>& ranks, Claim claim) {
  uint64_t free_slots = 0;
  // Every rank has as many sets as the others (groups apart), so all of them ask again or none
  // does.
  for (int turn = 0; free_slots == 0; ++turn) {
    if (turn > 0) AwaitRemovedSets();
    HA_ASSIGN(SetAgreement agreed, AgreeOnSet(SetChange::kAdd, claim, ranks, sets_.FreeSlots()));
    if (!agreed.parts.empty()) return TakenSlot{0, std::move(agreed.parts)};
    free_slots = agreed.free_slots;
    if (free_slots != 0 || (sets_.Ids().size() < kMaxProcessSets && turn < kDrainTurns)) continue;
    return MakeError(ErrorKind::kInvalid,
                     "there are " + std::to_string(kMaxProcessSets) + " process sets already");
  }
  const auto slot = static_cast<uint32_t>(std::countr_zero(free_slots));
  const uint32_t uses = slot_uses_[slot]++;
  if (uses > 0) {
    if (job_.local_rank() == 0) job_.control.WipeSet(slot);
    // No rank looks at the slot before it is wiped.
    HA_ASSIGN(const uint64_t handle,
              calls_.Submit(InSetZero("horoacc.process_set.wiped", Collective::kBarrier)));
    Status wiped = calls_.Wait(handle, kForEver);
    calls_.Release(handle);
    HA_TRY(std::move(wiped));
  }
  return TakenSlot{uses * kMaxProcessSets + slot, {}};
}

Result<uint32_t> SetChanges::Add(std::vector<int> ranks, Claim claim,
                                 const Interrupted& interrupted) {
  return RunAndAwait<uint32_t>(
      thread_, [this, ranks = std::move(ranks), claim] { return AddAgreed(ranks, claim); },
      interrupted);
}

Status SetChanges::Remove(uint32_t id, Claim claim, const Interrupted& interrupted) {
  return RunAndAwait<void>(
      thread_, [this, id, claim] { return RemoveAgreed(id, claim); }, interrupted);
}

// One set after the other, on all ranks in the same order. Gives the number of this rank's own.
Result<uint32_t> SetChanges::AddParts(const std::vector<std::vector<int>>& parts,
                                      const std::vector<int>& own) {
  uint32_t own_id = 0;
  std::vector<uint32_t> added;
  for (const std::vector<int>& part : parts) {
    const Result<uint32_t> id = AddAgreed(part, Claim::kWhole);
    if (!id.ok()) {
      for (const uint32_t earlier : added) HA_TRY(RemoveAgreed(earlier, Claim::kWhole));
      return id.error();
    }
    added.push_back(id.value());
    if (part == own) own_id = id.value();
  }
  return own_id;
}

Result<uint32_t> SetChanges::AddAgreed(std::vector<int> ranks, Claim claim) {
  if (ranks.empty()) return Refuse(SetChange::kAdd, "a process set needs at least one rank");
  std::ranges::sort(ranks);
  if (std::ranges::adjacent_find(ranks) != ranks.end())
    return Refuse(SetChange::kAdd, "a process set names a rank twice");
  if (ranks.front() < 0 || ranks.back() >= job_.placement.size) {
    return Refuse(SetChange::kAdd,
                  "a process set names rank " +
                      std::to_string(ranks.front() < 0 ? ranks.front() : ranks.back()) +
                      " of a job of " + std::to_string(job_.placement.size));
  }
  if (const std::optional<uint32_t> found = sets_.FindByRanks(ranks)) {
    return Refuse(SetChange::kAdd,
                  "a process set with these ranks exists: " + std::to_string(*found));
  }
  HA_ASSIGN(const TakenSlot taken, TakeSlot(ranks, claim));
  if (!taken.parts.empty()) return AddParts(taken.parts, ranks);
  sets_.Add(MakeProcessSet(job_, taken.id, SlotOf(taken.id), std::move(ranks)));
  return taken.id;
}

Status SetChanges::RemoveAgreed(uint32_t id, Claim claim) {
  const std::shared_ptr<ProcessSet> set = sets_.Find(id);
  if (!set || IsGroup(id))
    return Refuse(SetChange::kRemove, "a process set that is not registered cannot be removed");
  if (id == 0)
    return Refuse(SetChange::kRemove, "process set " + std::to_string(id) + " cannot be removed");
  bool in_flight = false;
  {
    // A call is complete for its caller shortly before it is not pending any more.
    std::lock_guard lock(set->queue.mutex);
    in_flight = set->queue.Awaited() > 0;
  }
  if (in_flight)
    return Refuse(SetChange::kRemove, "process set " + std::to_string(id) + " has calls in flight");
  HA_ASSIGN(const SetAgreement agreed, AgreeOnSet(SetChange::kRemove, claim, set->ranks, 0));
  for (const std::vector<int>& part : agreed.parts) {
    // For a part that is no registered set all ranks refuse alike.
    const std::optional<uint32_t> found = sets_.FindByRanks(part);
    HA_TRY(RemoveAgreed(found.value_or(kNoSet), Claim::kWhole));
  }
  if (!agreed.parts.empty()) return {};
  const bool member = set->Has(job_.rank());
  if (member) {
    {
      std::lock_guard lock(set->queue.mutex);
      set->queue.removed.store(true);
    }
    // Calls that came in between end with an error, decided or not: nothing runs from here on.
    HA_TRY(set->controller->End(SetEnd::Removed()));
  }
  sets_.Remove(set, member);
  return {};
}

}  // namespace horoacc
