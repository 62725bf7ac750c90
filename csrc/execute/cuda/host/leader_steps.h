#pragma once
// What a rank's host does for one window of mode L once its stream packs: over a template, so that
// the run and the model of its protocol (tests/cpp/model/leader_model.h) share it.
#include <cstdint>

#include "base/result.h"

namespace horoacc::cuda {

/// `Host` has: ranks(), leads(); RecordPacked() and TellPacked(), TellReduced(), for the events on
/// this rank's stream and the counts that the others read; HasTold(rank), whether that rank's count
/// says packed; IsPacked(rank) and IsReduced(), whether the GPU has come to the events;
/// ReduceAll(), which enqueues the reduction and records its event; HasResult(), whether the
/// leader's count says reduced.
class LeaderWindow {
 public:
  /// Continues as far as it can. True: the window is reduced in all ranks' buffers.
  template <typename Host>
  [[nodiscard]] Result<bool> Go(Host& host) {
    if (step_ == kTell) {
      HA_TRY(host.RecordPacked());
      host.TellPacked();
      step_ = host.leads() ? kGather : kAwait;
    }
    if (step_ == kGather) {
      // An event may be asked for only once its rank has said that it was recorded.
      const auto ranks = static_cast<uint8_t>(host.ranks());  // a host has fewer than 256
      for (; gathered_ < ranks; ++gathered_) {
        if (!host.HasTold(gathered_)) return false;
        HA_ASSIGN(const bool packed, host.IsPacked(gathered_));
        if (!packed) return false;
      }
      HA_TRY(host.ReduceAll());
      step_ = kReduce;
    }
    if (step_ == kReduce) {
      HA_ASSIGN(const bool reduced, host.IsReduced());
      if (!reduced) return false;
      host.TellReduced();
      step_ = kAwait;
    }
    return host.HasResult();
  }

 private:
  enum Step : uint8_t { kTell, kGather, kReduce, kAwait };
  Step step_ = kTell;
  uint8_t gathered_ = 0;  ///< ranks whose packing the leader has seen
};

}  // namespace horoacc::cuda
