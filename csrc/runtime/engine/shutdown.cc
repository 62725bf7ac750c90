#include "base/clock.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kDrainLimit = 5 * kSecond;

}  // namespace

Status Engine::Shutdown() {
  if (stopping_.exchange(true)) return {};
  const int me = share_.local_rank;
  Doorbell& doorbell = doorbells_.doorbell(me);
  doorbells_.Ring(me, Urgency::kQuiet);  // a caller that drives gives the lock back
  {
    std::lock_guard driver(driver_mutex_);
    doorbell.driven.store(1, std::memory_order_seq_cst);
    // Under each set's lock, so that no rank decides anything that needs this one afterwards. After
    // an abort nobody decides: who has not seen it yet is to be told of it, not of who left first.
    for (const auto& set : Sets()) {
      const SetSegment::Guard guard(*set->control);
      SetEnd none;
      if (guard.status().ok() && control_.aborted().kind == ErrorKind::kOk)
        set->control->header().end.compare_exchange_strong(none, SetEnd::Left(placement_.rank));
    }
    for (size_t l = 0; l < share_.ranks.size(); ++l)
      doorbells_.Ring(static_cast<int>(l), Urgency::kWork);
    HA_FAULT(*faults_, kShutdown);
    // What was decided before is carried out; what was not ends with kAborted.
    const int64_t limit = NowNs() + kDrainLimit;
    bool busy = true;
    bool unsent = false;
    for (;;) {
      const uint32_t seen = doorbell.count.load(std::memory_order_seq_cst);
      if (Progress()) continue;
      busy = messages_->Gives();
      unsent = false;
      for (const auto& set : DrivenSets()) {
        busy |= set->current || !set->draining.empty() || !set->controller->Ended();
        unsent |= !set->controller->Released();
      }
      unsent |= mux_ && mux_->HasUnsent();
      unsent |= multi_host_ && multi_host_->HasUnsent();
      if ((!busy && !unsent) || NowNs() > limit || control_.aborted().kind != ErrorKind::kOk) break;
      doorbells_.SleepAsWaiter(me, seen, 10 * kMillisecond);
      WatchPeers();
    }
    if (busy && control_.aborted().kind == ErrorKind::kOk) {
      // Peers may still use this rank's memory: they must stop before it is given up.
      Abort(MakeError(
          ErrorKind::kTimeout,
          "rank " + std::to_string(placement_.rank) + " shut down in the middle of a collective",
          placement_.rank));
    }
    FailAll(MakeError(ErrorKind::kAborted, "the engine has been shut down"));
    if (multi_host_) multi_host_->Leave(control_.aborted());
    control_.state(me).phase.store(static_cast<uint32_t>(RankPhase::kLeft),
                                   std::memory_order_release);
    for (size_t l = 0; l < share_.ranks.size(); ++l)
      doorbells_.Ring(static_cast<int>(l), Urgency::kQuiet);
    doorbell.driven.store(0, std::memory_order_seq_cst);
  }
  Status joined = JoinThreads();
  LetGo();
  return joined;
}

Status Engine::Abandon() {
  if (stopping_.exchange(true)) return {};
  doorbells_.Ring(share_.local_rank, Urgency::kQuiet);  // a caller that drives gives the lock back
  {
    std::lock_guard driver(driver_mutex_);
    FailAll(MakeError(ErrorKind::kAborted, "the engine has been abandoned"));
  }
  return JoinThreads();
}

Status Engine::JoinThreads() {
  coordinator_.request_stop();
  doorbells_.WakeCoordinator(share_.local_rank);
  if (coordinator_.joinable()) coordinator_.join();
  set_calls_.Stop();
  completion_.Stop();
  completed_.fetch_add(1);
  FutexWakeAll(completed_);
  return StopTimeline();
}

Status Engine::FinalizeMpi() {
  if (!mpi_) return {};
  if (ended_in_abort_ || control_.aborted().kind != ErrorKind::kOk) mpi_->Abandon();
  return mpi_->Finalize();
}

}  // namespace horoacc
