#include "runtime/health/liveness.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "runtime/health/process_state.h"

namespace horoacc {
namespace {

constexpr int64_t kLookEvery = 10 * kMillisecond;  // a system call for each rank of the host
constexpr int64_t kListenEvery = 100 * kMillisecond;

std::string SecondsOf(int64_t ns) { return std::to_string(ns / kSecond) + " s"; }

}  // namespace

void Liveness::Look() {
  const int64_t now = NowNs();
  int64_t due = next_look_ns_.load(std::memory_order_relaxed);
  if (now < due || !next_look_ns_.compare_exchange_strong(due, now + kLookEvery)) return;
  // An engine that could not start ends before it is introduced.
  if (!heartbeats_ || job_.HasLeft(job_.local_rank())) return;
  const std::unique_lock watching(mutex_, std::try_to_lock);
  if (!watching) return;
  for (uint32_t l = 0; l < job_.share.ranks.size(); ++l) {
    if (static_cast<int>(l) == job_.local_rank() || job_.IsAlive(l) || job_.HasLeft(l)) continue;
    const int rank = job_.share.ranks[l];
    return failure_.Abort(MakeError(
        ErrorKind::kPeerLost,
        "rank " + std::to_string(rank) + " died without shutting down; " + HowFar(l), rank));
  }
  if (now < next_listen_ns_) return;
  next_listen_ns_ = now + kListenEvery;
  WatchSilences(now);
  doubtful_.store(heartbeats_->doubtful(), std::memory_order_relaxed);
}

void Liveness::Introduce() {
  RankState& state = job_.own_state();
  state.pid.store(::getpid(), std::memory_order_relaxed);
  state.started_ticks.store(StartOfProcess(::getpid()), std::memory_order_relaxed);
  state.epoch.store(job_.share.epoch, std::memory_order_relaxed);
  state.beat_ns.store(NowNs(), std::memory_order_release);
  heartbeats_ = std::make_unique<HeartbeatMonitor>(
      job_.share.ranks.size() + (job_.multi_host ? job_.placement.size : 0),
      HeartbeatMonitor::Limits{FromSeconds(job_.settings.heartbeat_warning_seconds),
                               FromSeconds(job_.settings.heartbeat_timeout_seconds)});
}

Status Liveness::CheckEpochs() const {
  for (size_t l = 0; l < job_.share.ranks.size(); ++l) {
    const RankState& state = job_.control.state(static_cast<uint32_t>(l));
    const uint64_t epoch = state.epoch.load(std::memory_order_relaxed);
    if (epoch == job_.share.epoch) continue;
    const int rank = job_.share.ranks[l];
    return MakeError(ErrorKind::kConfig,
                     "the memory that rank " + std::to_string(rank) +
                         " shares is of another init: its epoch is " + std::to_string(epoch) +
                         ", rank " + std::to_string(job_.rank()) + " is at " +
                         std::to_string(job_.share.epoch),
                     rank);
  }
  return {};
}

std::string Liveness::HowFar(uint32_t local) const {
  const auto begun = [this](uint32_t of) {
    return std::to_string(job_.control.state(of).collectives.load(std::memory_order_relaxed));
  };
  return "it has begun " + begun(local) + " collectives, rank " + std::to_string(job_.rank()) +
         " " + begun(job_.local_rank());
}

void Liveness::Beat() {
  const int64_t now = NowNs();
  job_.own_state().beat_ns.store(now, std::memory_order_release);
  if (!job_.multi_host || now < next_beat_across_ns_) return;
  next_beat_across_ns_ = now + heartbeats_->beat_every_ns();
  if (!job_.stopping.load(std::memory_order_acquire)) job_.multi_host->channel().TellBeat();
}

int64_t Liveness::UntilBeat(int64_t now_ns) const {
  const int64_t every = heartbeats_->beat_every_ns();
  return job_.multi_host ? std::clamp<int64_t>(next_beat_across_ns_ - now_ns, 0, every) : every;
}

void Liveness::WatchSilences(int64_t now_ns) {
  if (job_.aborted()) return;
  heartbeats_->Begin(now_ns);
  for (size_t l = 0; l < job_.share.ranks.size(); ++l) {
    if (static_cast<int>(l) == job_.local_rank()) continue;
    RankState& state = job_.control.state(static_cast<uint32_t>(l));
    if (job_.HasLeft(static_cast<uint32_t>(l))) continue;
    const int64_t beat = state.beat_ns.load(std::memory_order_acquire);
    const HeartbeatMonitor::News news = heartbeats_->See(l, beat);
    const int pid = state.pid.load(std::memory_order_relaxed);
    const uint64_t started = state.started_ticks.load(std::memory_order_relaxed);
    if (heartbeats_->IsLate(l) && IsDumpingCore(pid, started)) {
      const int rank = job_.share.ranks[l];
      return failure_.Abort(MakeError(ErrorKind::kPeerLost,
                                      "rank " + std::to_string(rank) +
                                          " crashed, and its core is being dumped; " +
                                          HowFar(static_cast<uint32_t>(l)),
                                      rank));
    }
    if (news == HeartbeatMonitor::News::kNone) continue;  // what follows reads /proc
    // Only the first rank of the host that notices it logs it.
    if (news == HeartbeatMonitor::News::kSilent && state.silence_told.exchange(beat) == beat)
      continue;
    if (news == HeartbeatMonitor::News::kBack && state.silence_told.exchange(0) == 0) continue;
    TellSilence(news, job_.share.ranks[l],
                "process " + std::to_string(pid) + " on this host; " +
                    WhyProcessIsSilent(pid, started) + "; " + HowFar(static_cast<uint32_t>(l)),
                heartbeats_->silent_ns(l));
  }
  if (!job_.multi_host) return;
  JobChannel& channel = job_.multi_host->channel();
  std::vector<int> watched = channel.watched();
  for (const int rank : watched) {
    const size_t peer = job_.share.ranks.size() + static_cast<size_t>(rank);
    if (std::ranges::find(watched_across_, rank) == watched_across_.end())
      heartbeats_->Expect(peer);
    const HeartbeatMonitor::News news = heartbeats_->See(peer, channel.heard_ns(rank));
    if (news == HeartbeatMonitor::News::kSilent || news == HeartbeatMonitor::News::kBack)
      channel.TellSilence(rank, news == HeartbeatMonitor::News::kSilent);
    TellSilence(news, rank, "on another host; it is stopped, or the host or the network between is",
                heartbeats_->silent_ns(peer));
  }
  watched_across_ = std::move(watched);
}

void Liveness::TellSilence(HeartbeatMonitor::News news, int rank, const std::string& who,
                           int64_t silent_ns) {
  const std::string name = "rank " + std::to_string(rank);
  const std::string silence = name + " (" + who + ") has given no sign of life for ";
  switch (news) {
    case HeartbeatMonitor::News::kNone:
      return;
    case HeartbeatMonitor::News::kSilent:
      return job_.log.Write(LogLevel::kWarning, silence + SecondsOf(silent_ns));
    case HeartbeatMonitor::News::kBack:
      return job_.log.Write(LogLevel::kWarning, name + " gives signs of life again");
    case HeartbeatMonitor::News::kHangs:
      return failure_.Abort(MakeError(ErrorKind::kTimeout, silence + SecondsOf(silent_ns), rank));
  }
}

}  // namespace horoacc
