#pragma once
// What a rank's host does for one window of mode L once its stream packs: over a template, so that
// the run and the model of its protocol (tests/cpp/model/leader_model.h) share it.
#include <cstdint>

#include "base/result.h"

namespace horoacc::cuda {

/// `Host` has: ranks(), leads(); RecordPacked(), IsPacked() and IsReduced(), for events on this
/// rank's stream; TellPacked() and TellReduced(), for counts that the others read; HasTold(rank),
/// whether that rank's count says that its GPU has packed; ReduceAll(), which enqueues the
/// reduction and records its event; HasResult(), whether the leader's count says that its GPU has
/// reduced.
///
/// An event is only asked by the rank that recorded it: events of other processes are the part of
/// CUDA that promises least, and between containers they need a common /dev/shm.
class LeaderWindow {
 public:
  /// Continues as far as it can. True: the window is reduced in all ranks' buffers.
  template <typename Host>
  [[nodiscard]] Result<bool> Go(Host& host) {
    if (step_ == kRecord) {
      HA_TRY(host.RecordPacked());
      step_ = kPack;
    }
    if (step_ == kPack) {
      HA_ASSIGN(const bool packed, host.IsPacked());
      if (!packed) return false;
      host.TellPacked();
      step_ = host.leads() ? kGather : kAwait;
    }
    if (step_ == kGather) {
      const auto ranks = static_cast<uint8_t>(host.ranks());  // a host has fewer than 256
      for (; gathered_ < ranks; ++gathered_) {
        if (!host.HasTold(gathered_)) return false;
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
  enum Step : uint8_t { kRecord, kPack, kGather, kReduce, kAwait };
  Step step_ = kRecord;
  uint8_t gathered_ = 0;  ///< ranks whose packing the leader has seen
};

}  // namespace horoacc::cuda
