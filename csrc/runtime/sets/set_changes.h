#pragma once
// Adding and removing process sets: every rank of the job takes part, through collectives in set 0.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/calls.h"
#include "runtime/job/task_threads.h"
#include "runtime/sets/set_table.h"

namespace horoacc {

/// Asked now and then by a call that waits for other ranks; true ends the wait with kTimeout. The
/// call itself goes on, in step with the other ranks.
using Interrupted = std::function<bool()>;

/// What a rank means by the ranks that it names: the set that all ranks name, or the part of the
/// job that it is in itself, as of a communicator that was split; each part then becomes a set.
enum class SetClaim : int64_t { kRefused = -1, kWhole = 0, kOwnPart = 1 };

/// Any thread. The changes are made on a thread of their own, one at a time.
class SetChanges {
 public:
  SetChanges(Job& job, SetTable& sets, Calls& calls) : job_(job), sets_(sets), calls_(calls) {}

  Status Start() { return thread_.Start(); }
  void Stop() { thread_.Stop(); }
  Result<uint32_t> Add(std::vector<int> ranks, SetClaim claim, const Interrupted& interrupted);
  Status Remove(uint32_t id, SetClaim claim, const Interrupted& interrupted);

 private:
  using Claim = SetClaim;
  enum class SetChange : int64_t { kAdd = 1, kRemove = 2 };
  struct TakenSlot {
    uint32_t id = 0;  ///< of the new set, unless there are parts
    std::vector<std::vector<int>> parts;
  };
  struct SetAgreement {
    uint64_t free_slots = 0;              ///< those that are free on all ranks
    std::vector<std::vector<int>> parts;  ///< if the ranks named several sets, each its own
  };

  Result<uint32_t> AddAgreed(std::vector<int> ranks, Claim claim);
  Result<uint32_t> AddParts(const std::vector<std::vector<int>>& parts,
                            const std::vector<int>& own);
  Status RemoveAgreed(uint32_t id, Claim claim);
  Result<TakenSlot> TakeSlot(const std::vector<int>& ranks, Claim claim);
  static const char* VerbOf(SetChange change);
  Result<SetAgreement> AgreeOnSet(SetChange change, Claim claim, const std::vector<int>& ranks,
                                  uint64_t free_slots);
  Error Refuse(SetChange change, std::string reason);
  void AwaitRemovedSets() const;

  Job& job_;
  SetTable& sets_;
  Calls& calls_;
  TaskThreads thread_{1, "horoacc-sets"};
  std::vector<uint32_t> slot_uses_ = std::vector<uint32_t>(kMaxProcessSets);  ///< that thread's
};

}  // namespace horoacc
