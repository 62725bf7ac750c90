#include "runtime/silences.h"

#include <algorithm>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kOwnPause = 2 * kSecond;  // looks are at most one second apart
constexpr int64_t kDoubtAfter = 3 * kSecond / 2;

}  // namespace

void Silences::Begin(int64_t now_ns) {
  const bool first = now_ns_ == 0;
  last_look_ns_ = first ? now_ns : now_ns_;
  now_ns_ = now_ns;
  doubtful_ = false;
  if (first || now_ns - last_look_ns_ > kOwnPause) {
    const int64_t pause = first ? now_ns : now_ns - last_look_ns_;
    for (Peer& peer : peers_) peer.seen_ns += pause;
  }
}

Silences::News Silences::See(size_t index, int64_t beat_ns) {
  Peer& peer = peers_[index];
  bool back = false;
  if (beat_ns != peer.beat_ns) {
    peer.beat_ns = beat_ns;
    // It came between the two looks.
    peer.seen_ns = std::clamp(beat_ns, std::max(last_look_ns_, peer.seen_ns), now_ns_);
    back = peer.told;
    peer.told = false;
  }
  const int64_t silent = silent_ns(index);
  doubtful_ |= silent > kDoubtAfter;
  if (limits_.end_ns > 0 && silent > limits_.end_ns) return News::kHangs;
  if (limits_.warn_ns > 0 && silent > limits_.warn_ns && !peer.told) {
    peer.told = true;
    return News::kSilent;
  }
  return back ? News::kBack : News::kNone;
}

}  // namespace horoacc
