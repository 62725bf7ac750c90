// What an engine that has been shut down gives back at once. The object itself stays for as long as
// bindings may still ask it, one that uses MPI to the end of the process; whoever joins and leaves
// many times must not pay for each time. And what a forked child gives back.
#include <algorithm>

#include "runtime/engine/engine.h"

namespace horoacc {

// The threads have been joined, and every call has ended. A caller that is on its way out may still
// look at the control segment, which reads as zeroes from now on, but drives nothing any more.
void Engine::LetGo() {
  const std::lock_guard driver(driver_mutex_);
  gone_ = true;
  ended_in_abort_ = control_.aborted().kind != ErrorKind::kOk;
  std::vector<std::shared_ptr<ProcessSet>> sets;
  {
    std::lock_guard lock(sets_mutex_);
    for (const auto& set : sets_) {
      if (set) sets.push_back(set);
    }
    sets.insert(sets.end(), removed_sets_.begin(), removed_sets_.end());
    sets_.clear();
    removed_sets_.clear();
  }
  // Who is in the middle of a submission leaves it: the next one finds the failure.
  for (const auto& set : sets) {
    const std::lock_guard submitting(set->queue.mutex);
    for (const auto& [end, block] : set->kept_blocks) arena_->Free(block);
    set->kept_blocks.clear();
  }
  for (const auto& set : sets) set->gpu_group.reset();
  gpus_.Close();
  std::vector<void*> freed;
  {
    std::lock_guard lock(quarantine_mutex_);
    freed.swap(quarantine_);
  }
  for (void* memory : freed) arena_->Free(memory);

  // MPI has nothing that is ours to give back, and after an abort may not be called.
  if (!mpi_) {
    if (mux_) mux_->Close();
    links_.reset();
  }
  uint32_t places = 0;
  for (const auto& set : sets) places = std::max(places, set->place + 1);
  if (multi_host_) multi_host_->LetGo(/*close_links=*/!mpi_, places);
  bootstrap_.reset();
  doorbells_.Release();
  keep_alive_.clear();
  share_.keep_alive.clear();
  share_.control.Forget(control_.BytesUpTo(multi_host_ ? 0 : places));
  for (size_t l = 0; l < share_.memory.size(); ++l) {
    if (static_cast<int>(l) != share_.local_rank) share_.memory[l] = Segment();
  }
  share_.memory[share_.local_rank].KeepOnly(arena_->Close());
  for (auto& watched : share_.pidfds) watched.reset();
  for (auto& wake : share_.wake) wake.reset();
  events_.Forget();
}

void Engine::AfterForkInChild() {
  arena_->AfterForkInChild();
  if (links_) links_->LeaveToParent();
  if (multi_host_) multi_host_->LeaveToParent();
}

}  // namespace horoacc
