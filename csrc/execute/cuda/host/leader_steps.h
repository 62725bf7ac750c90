#pragma once
// What a rank's host does for a window of mode L once its stream packs: over a template, so that
// the run and the model of its protocol (tests/cpp/model/leader_model.h) share it.
#include <cstdint>

#include "base/result.h"

namespace horoacc::cuda {

/// `Host` has: ranks(), leads(); IsPacked() and IsReduced(), for events on this rank's streams
/// behind its packing and the leader's reduction; TellPacked() and TellReduced(), for counts that
/// the others read; HasTold(rank), whether that rank's count says that its GPU has packed;
/// ReduceAll(), which enqueues the reduction and records its event; HasResult(), whether the
/// leader's count says that its GPU has reduced.
///
/// An event is only asked by the rank that recorded it: events of other processes are the part of
/// CUDA that promises least, and between containers they need a common /dev/shm.
class LeaderWindow {
 public:
  /// Continues as far as it can. True: this rank has nothing more to enqueue before the result. One
  /// window of a rank at a time, in order.
  template <typename Host>
  [[nodiscard]] Result<bool> Launch(Host& host) {
    if (step_ == kPack) {
      HA_ASSIGN(const bool packed, host.IsPacked());
      if (!packed) return false;
      host.TellPacked();
      step_ = host.leads() ? kGather : kEnd;
    }
    if (step_ == kGather) {
      const auto ranks = static_cast<uint8_t>(host.ranks());  // a host has fewer than 256
      for (; gathered_ < ranks; ++gathered_) {
        if (!host.HasTold(gathered_)) return false;
      }
      HA_TRY(host.ReduceAll());
      step_ = kEnd;
    }
    return true;
  }

  /// Whether a launched window is reduced in all ranks' buffers. The same, of others than Launch.
  template <typename Host>
  [[nodiscard]] static Result<bool> IsReduced(Host& host) {
    if (!host.leads()) return host.HasResult();
    HA_ASSIGN(const bool reduced, host.IsReduced());
    if (reduced) host.TellReduced();
    return reduced;
  }

 private:
  enum Step : uint8_t { kPack, kGather, kEnd };
  Step step_ = kPack;
  uint8_t gathered_ = 0;  ///< ranks whose packing the leader has seen
};

}  // namespace horoacc::cuda
