// Signs of life: what this rank gives, and which others give none. A rank that computes for minutes
// without a call gives them all the same, for they are the coordinator's.
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "runtime/engine/engine.h"
#include "runtime/health/process_state.h"

namespace horoacc {
namespace {

std::string SecondsOf(int64_t ns) { return std::to_string(ns / kSecond) + " s"; }

}  // namespace

void Engine::Introduce() {
  RankState& state = control_.state(share_.local_rank);
  state.pid.store(::getpid(), std::memory_order_relaxed);
  state.started_ticks.store(StartOfProcess(::getpid()), std::memory_order_relaxed);
  state.epoch.store(share_.epoch, std::memory_order_relaxed);
  state.beat_ns.store(NowNs(), std::memory_order_release);
}

// After a meeting before which all have introduced themselves.
Status Engine::CheckEpochs() const {
  for (size_t l = 0; l < share_.ranks.size(); ++l) {
    const RankState& state = control_.state(static_cast<uint32_t>(l));
    const uint64_t epoch = state.epoch.load(std::memory_order_relaxed);
    if (epoch == share_.epoch) continue;
    const int rank = share_.ranks[l];
    return MakeError(ErrorKind::kConfig,
                     "the memory that rank " + std::to_string(rank) +
                         " shares is of another init: its epoch is " + std::to_string(epoch) +
                         ", rank " + std::to_string(placement_.rank) + " is at " +
                         std::to_string(share_.epoch),
                     rank);
  }
  return {};
}

// How far a rank of this host has come, and this one, which tells.
std::string Engine::HowFar(uint32_t local) const {
  const auto begun = [this](uint32_t of) {
    return std::to_string(control_.state(of).collectives.load(std::memory_order_relaxed));
  };
  return "it has begun " + begun(local) + " collectives, rank " + std::to_string(placement_.rank) +
         " " + begun(share_.local_rank);
}

void Engine::Beat() {
  const int64_t now = NowNs();
  control_.state(share_.local_rank).beat_ns.store(now, std::memory_order_release);
  if (!multi_host_ || now < next_beat_across_ns_) return;
  next_beat_across_ns_ = now + heartbeats_->beat_every_ns();
  if (!stopping_.load(std::memory_order_acquire)) multi_host_->TellBeat();
}

// How long a coordinator with nothing to do may sleep.
int64_t Engine::UntilBeat(int64_t now_ns) const {
  const int64_t every = heartbeats_->beat_every_ns();
  return multi_host_ ? std::clamp<int64_t>(next_beat_across_ns_ - now_ns, 0, every) : every;
}

// Under watch_mutex_.
void Engine::WatchSilences(int64_t now_ns) {
  if (control_.aborted().kind != ErrorKind::kOk) return;
  heartbeats_->Begin(now_ns);
  for (size_t l = 0; l < share_.ranks.size(); ++l) {
    if (static_cast<int>(l) == share_.local_rank) continue;
    RankState& state = control_.state(static_cast<uint32_t>(l));
    if (static_cast<RankPhase>(state.phase.load(std::memory_order_acquire)) == RankPhase::kLeft)
      continue;
    const int64_t beat = state.beat_ns.load(std::memory_order_acquire);
    const HeartbeatMonitor::News news = heartbeats_->See(l, beat);
    // Of the ranks of a host one tells.
    if (news == HeartbeatMonitor::News::kSilent && state.silence_told.exchange(beat) == beat)
      continue;
    if (news == HeartbeatMonitor::News::kBack && state.silence_told.exchange(0) == 0) continue;
    const int pid = state.pid.load(std::memory_order_relaxed);
    TellSilence(news, share_.ranks[l],
                "process " + std::to_string(pid) + " on this host; " +
                    WhyProcessIsSilent(pid, state.started_ticks.load(std::memory_order_relaxed)) +
                    "; " + HowFar(static_cast<uint32_t>(l)),
                heartbeats_->silent_ns(l));
  }
  if (!multi_host_) return;
  std::vector<int> watched = multi_host_->watched();
  for (const int rank : watched) {
    const size_t peer = share_.ranks.size() + static_cast<size_t>(rank);
    if (std::ranges::find(watched_across_, rank) == watched_across_.end())
      heartbeats_->Expect(peer);
    TellSilence(heartbeats_->See(peer, multi_host_->heard_ns(rank)), rank,
                "on another host; it is stopped, or the host or the network between is",
                heartbeats_->silent_ns(peer));
  }
  watched_across_ = std::move(watched);
}

void Engine::TellSilence(HeartbeatMonitor::News news, int rank, const std::string& who,
                         int64_t silent_ns) {
  const std::string name = "rank " + std::to_string(rank);
  const std::string silence = name + " (" + who + ") has given no sign of life for ";
  switch (news) {
    case HeartbeatMonitor::News::kNone:
      return;
    case HeartbeatMonitor::News::kSilent:
      return log_.Write(LogLevel::kWarning, silence + SecondsOf(silent_ns));
    case HeartbeatMonitor::News::kBack:
      return log_.Write(LogLevel::kWarning, name + " gives signs of life again");
    case HeartbeatMonitor::News::kHangs:
      return Abort(MakeError(ErrorKind::kTimeout, silence + SecondsOf(silent_ns), rank));
  }
}

}  // namespace horoacc
