#include "runtime/health/heartbeat_monitor.h"

#include <algorithm>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kOwnPauseInBeats = 2;  // looks are at most one beat apart
constexpr int64_t kBeatAtLeastEvery = kSecond;
constexpr int64_t kBeatsInLimit = 4;

int64_t BeatEvery(HeartbeatMonitor::Limits limits) {
  int64_t every = kBeatAtLeastEvery;
  for (const int64_t limit : {limits.warn_ns, limits.end_ns}) {
    if (limit > 0) every = std::min(every, limit / kBeatsInLimit);
  }
  return every;
}

}  // namespace

HeartbeatMonitor::HeartbeatMonitor(size_t peers, Limits limits)
    : limits_(limits), beat_every_ns_(BeatEvery(limits)), peers_(peers) {}

void HeartbeatMonitor::Begin(int64_t now_ns) {
  const bool first = now_ns_ == 0;
  last_look_ns_ = first ? now_ns : now_ns_;
  now_ns_ = now_ns;
  doubtful_ = false;
  if (first || now_ns - last_look_ns_ > kOwnPauseInBeats * beat_every_ns_) {
    const int64_t pause = first ? now_ns : now_ns - last_look_ns_;
    for (Peer& peer : peers_) peer.seen_ns += pause;
  }
}

HeartbeatMonitor::News HeartbeatMonitor::See(size_t index, int64_t beat_ns) {
  Peer& peer = peers_[index];
  if (beat_ns != peer.beat_ns) {
    peer.beat_ns = beat_ns;
    // It came between the two looks.
    peer.seen_ns = std::clamp(beat_ns, std::max(last_look_ns_, peer.seen_ns), now_ns_);
  }
  const int64_t silent = silent_ns(index);
  doubtful_ |= IsLate(index);
  if (limits_.end_ns > 0 && silent > limits_.end_ns) return News::kHangs;
  const bool late = limits_.warn_ns > 0 && silent > limits_.warn_ns;
  if (late == peer.told) return News::kNone;
  peer.told = late;
  return late ? News::kSilent : News::kBack;
}

}  // namespace horoacc
