#pragma once
// The locked plans of one rank.
#include <mutex>
#include <vector>

#include "runtime/engine/locked_plan.h"

namespace horoacc {

/// Any thread.
class Plans {
 public:
  void Add(LockedPlan* plan);
  void Remove(LockedPlan* plan);
  /// This rank is about to join.
  void BeforeJoin(uint32_t process_set);
  /// See LockedPlan::AfterTuning.
  void AfterTuning();
  /// The engine takes no calls any more; plans are not looked at again.
  void Close();
  /// See LockedPlan::LookAtOthers.
  void LookAtOthers();
  /// Never blocks: nothing of a plan while a thread is in it.
  [[nodiscard]] PlansState State();

 private:
  std::mutex mutex_;
  std::vector<LockedPlan*> plans_;
};

}  // namespace horoacc
