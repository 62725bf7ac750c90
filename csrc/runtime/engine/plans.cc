#include "runtime/engine/plans.h"

namespace horoacc {

void Plans::Add(LockedPlan* plan) {
  const std::lock_guard lock(mutex_);
  plans_.push_back(plan);
}

void Plans::Remove(LockedPlan* plan) {
  const std::lock_guard lock(mutex_);
  std::erase(plans_, plan);
}

void Plans::BeforeJoin(uint32_t process_set) {
  const std::lock_guard lock(mutex_);
  for (LockedPlan* const plan : plans_) plan->BeforeJoin(process_set);
}

void Plans::AfterTuning() {
  const std::lock_guard lock(mutex_);
  for (LockedPlan* const plan : plans_) plan->AfterTuning();
}

void Plans::Close() {
  const std::lock_guard lock(mutex_);
  for (LockedPlan* const plan : plans_) plan->Close();
}

void Plans::LookAtOthers() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (LockedPlan* const plan : plans_) plan->LookAtOthers();
}

PlansState Plans::State() {
  PlansState state;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return state;
  for (const LockedPlan* const plan : plans_) plan->AddTo(state);
  return state;
}

}  // namespace horoacc
