#pragma once
// The whole control segment of a host: header, doorbells, rank states, then set after set.
#include <vector>

#include "negotiate/control_segment/segment_layout.h"
#include "transport/memory/host_share.h"

namespace horoacc {

class ControlSegment {
 public:
  ControlSegment(const HostShare& share, uint64_t fusion_threshold);
  [[nodiscard]] static size_t BytesFor(uint32_t local_size);

  [[nodiscard]] HostHeader& header() const { return *reinterpret_cast<HostHeader*>(base_); }
  [[nodiscard]] Doorbell* doorbells() const { return doorbells_; }
  [[nodiscard]] RankState& state(uint32_t local_rank) const { return states_[local_rank]; }
  [[nodiscard]] std::byte* set_memory(uint32_t slot) const;
  /// Zeroes a slot whose process set is done on all ranks, for the next one.
  void WipeSet(uint32_t slot) const;
  /// Of the control segment, up to the end of the sets in its first `slots`.
  [[nodiscard]] size_t BytesUpTo(uint32_t slots) const;
  [[nodiscard]] uint64_t fusion_threshold() const { return fusion_threshold_; }

  [[nodiscard]] int rank_of(uint32_t local_rank) const { return ranks_[local_rank]; }

  /// Puts an error into the abort word; the first one stays. True if this one did.
  bool Abort(const Error& error) const;
  [[nodiscard]] bool has_aborted() const {
    return header().abort_word.load(std::memory_order_acquire) != 0;
  }
  /// The error in the abort word, or kOk.
  [[nodiscard]] Error aborted() const;

 private:
  std::byte* base_;
  int fd_;
  Doorbell* doorbells_;
  RankState* states_;
  std::vector<int> ranks_;  ///< global, by local rank
  uint32_t local_size_;
  uint64_t fusion_threshold_;
};

}  // namespace horoacc
