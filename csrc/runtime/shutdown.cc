#include "base/clock.h"
#include "runtime/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kDrainLimit = 5 * kSecond;

}  // namespace

Status Engine::Shutdown() {
  if (stopping_.exchange(true)) return {};
  const int me = share_.local_rank;
  Bell& bell = bells_.bell(me);
  bells_.Ring(me, Urgency::kQuiet);  // a caller that drives gives the lock back
  {
    std::lock_guard driver(driver_mutex_);
    bell.driven.store(1, std::memory_order_seq_cst);
    // Under each set's lock, so that no rank decides anything that needs this one afterwards. After
    // an abort nobody decides: who has not seen it yet is to be told of it, not of who left first.
    for (const auto& set : Sets()) {
      const SetBoard::Guard guard(*set->board);
      SetEnd none;
      if (guard.status().ok() && board_.aborted().kind == ErrorKind::kOk)
        set->board->header().end.compare_exchange_strong(none, SetEnd::Left(placement_.rank));
    }
    for (size_t l = 0; l < share_.ranks.size(); ++l)
      bells_.Ring(static_cast<int>(l), Urgency::kWork);
    HA_FAULT(*faults_, kShutdown);
    // What was decided before is carried out; what was not ends with kAborted.
    const int64_t limit = NowNs() + kDrainLimit;
    bool busy = true;
    bool unsent = false;
    for (;;) {
      const uint32_t seen = bell.count.load(std::memory_order_seq_cst);
      if (Progress()) continue;
      busy = messages_->Gives();
      unsent = false;
      for (const auto& set : DrivenSets()) {
        busy |= set->current || !set->lingering.empty() || !set->plane->Ended();
        unsent |= !set->plane->Released();
      }
      unsent |= mux_ && mux_->HasUnsent();
      unsent |= spread_ && spread_->HasUnsent();
      if ((!busy && !unsent) || NowNs() > limit || board_.aborted().kind != ErrorKind::kOk) break;
      bells_.SleepAsWaiter(me, seen, 10 * kMillisecond);
      WatchPeers();
    }
    if (busy && board_.aborted().kind == ErrorKind::kOk) {
      // Peers may still use this rank's memory: they must stop before it is given up.
      Abort(MakeError(
          ErrorKind::kTimeout,
          "rank " + std::to_string(placement_.rank) + " shut down in the middle of a collective",
          placement_.rank));
    }
    FailAll(MakeError(ErrorKind::kAborted, "the engine has been shut down"));
    if (spread_) spread_->Leave(board_.aborted());
    board_.state(me).phase.store(static_cast<uint32_t>(RankPhase::kLeft),
                                 std::memory_order_release);
    for (size_t l = 0; l < share_.ranks.size(); ++l)
      bells_.Ring(static_cast<int>(l), Urgency::kQuiet);
    bell.driven.store(0, std::memory_order_seq_cst);
  }
  Status joined = JoinThreads();
  LetGo();
  return joined;
}

Status Engine::Abandon() {
  if (stopping_.exchange(true)) return {};
  bells_.Ring(share_.local_rank, Urgency::kQuiet);  // a caller that drives gives the lock back
  {
    std::lock_guard driver(driver_mutex_);
    FailAll(MakeError(ErrorKind::kAborted, "the engine has been abandoned"));
  }
  return JoinThreads();
}

Status Engine::JoinThreads() {
  coordinator_.request_stop();
  bells_.WakeCoordinator(share_.local_rank);
  if (coordinator_.joinable()) coordinator_.join();
  set_calls_.Stop();
  completion_.Stop();
  completed_.fetch_add(1);
  FutexWakeAll(completed_);
  return StopTimeline();
}

Status Engine::FinalizeMpi() {
  if (!mpi_) return {};
  if (ended_in_abort_ || board_.aborted().kind != ErrorKind::kOk) mpi_->Abandon();
  return mpi_->Finalize();
}

}  // namespace horoacc
