// Adding and removing process sets: every rank of the job takes part, through set 0.
#include <algorithm>

#include "base/clock.h"
#include "runtime/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kAgreeLimit = 60 * kSecond;

}  // namespace

// All ranks exchange what they were asked for, so that a disagreement is an error everywhere
// instead of two sets with one number.
Status Engine::AgreeOnSet(const std::string& what, uint32_t id, const std::vector<int>& ranks) {
  // Held by the call itself, which may outlive a wait that ends at its limit.
  const auto held = std::make_shared<std::vector<int64_t>>(placement_.size + 2, -1);
  std::vector<int64_t>& mine = *held;
  mine[0] = id;
  mine[1] = static_cast<int64_t>(ranks.size());
  std::copy(ranks.begin(), ranks.end(), mine.begin() + 2);
  Submission submission;
  submission.name = "horoacc.process_set." + what;
  submission.request.collective = Collective::kAllgather;
  submission.request.tensors = {{DType::kInt64, {static_cast<int64_t>(mine.size())}}};
  submission.buffers = {{mine.data(), nullptr}};
  submission.done = [held] {};
  HA_ASSIGN(const uint64_t handle, Submit(std::move(submission)));
  Status outcome = Wait(handle, NowNs() + kAgreeLimit);
  const std::shared_ptr<Entry> entry = Find(handle);
  Release(handle);
  HA_TRY(std::move(outcome));
  const auto* all = reinterpret_cast<const int64_t*>(entry->tensors[0].output);
  for (int rank = 0; rank < placement_.size; ++rank) {
    if (!std::equal(mine.begin(), mine.end(), all + rank * mine.size())) {
      return MakeError(ErrorKind::kInvalid,
                       "process sets differ: rank " + std::to_string(placement_.rank) +
                           " and rank " + std::to_string(rank) + " do not " + what +
                           " the same ranks",
                       rank);
    }
  }
  return {};
}

Result<uint32_t> Engine::AddProcessSet(std::vector<int> ranks) {
  std::lock_guard one_at_a_time(process_set_mutex_);
  if (ranks.empty()) return MakeError(ErrorKind::kInvalid, "a process set needs at least one rank");
  std::ranges::sort(ranks);
  if (std::ranges::adjacent_find(ranks) != ranks.end()) {
    return MakeError(ErrorKind::kInvalid, "a process set names a rank twice");
  }
  if (ranks.front() < 0 || ranks.back() >= placement_.size) {
    return MakeError(ErrorKind::kInvalid,
                     "a process set names rank " +
                         std::to_string(ranks.front() < 0 ? ranks.front() : ranks.back()) +
                         " of a job of " + std::to_string(placement_.size));
  }
  uint32_t id = 0;
  {
    std::lock_guard lock(sets_mutex_);
    for (const auto& set : sets_) {
      if (set && set->ranks == ranks) {
        return MakeError(ErrorKind::kInvalid,
                         "a process set with these ranks exists: " + std::to_string(set->id));
      }
    }
    id = static_cast<uint32_t>(sets_.size());
  }
  if (id >= kMaxProcessSets) {
    return MakeError(ErrorKind::kInvalid, "more than " + std::to_string(kMaxProcessSets) +
                                              " process sets were added in one job");
  }
  HA_TRY(AgreeOnSet("add", id, ranks));
  std::shared_ptr<ProcessSet> set = MakeSet(id, std::move(ranks));
  std::lock_guard lock(sets_mutex_);
  sets_.push_back(std::move(set));
  return id;
}

Status Engine::RemoveProcessSet(uint32_t id) {
  std::lock_guard one_at_a_time(process_set_mutex_);
  const std::shared_ptr<ProcessSet> set = FindSet(id);
  if (!set || id == 0) {
    return MakeError(ErrorKind::kInvalid,
                     "process set " + std::to_string(id) + " cannot be removed");
  }
  if (set->queue.pending.load() > 0) {
    return MakeError(ErrorKind::kInvalid,
                     "process set " + std::to_string(id) + " has calls in flight");
  }
  HA_TRY(AgreeOnSet("remove", id, set->ranks));
  std::lock_guard lock(sets_mutex_);
  removed_sets_.push_back(set);
  sets_[id] = nullptr;  // numbers are not used again: a late message cannot meet a new set
  return {};
}

}  // namespace horoacc
