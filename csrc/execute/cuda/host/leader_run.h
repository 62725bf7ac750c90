#pragma once
// Mode L, for ranks on one GPU: each packs into its buffer, and one rank's kernels reduce from all
// buffers to all.
#include "execute/cuda/host/gpu_run.h"
#include "execute/cuda/host/leader_steps.h"

namespace horoacc::cuda {

/// No kernel and no stream waits for another process: each rank's host asks its own events, and
/// tells the others how far its GPU is. So the death of a rank leaves nothing stuck.
class LeaderRun final : public ModeRun {
 public:
  LeaderRun(Bucket bucket, std::vector<DeviceCall*> calls)
      : ModeRun(std::move(bucket), std::move(calls), Waits::kHosts) {}

 private:
  friend class LeaderWindow;  // calls what follows
  [[nodiscard]] uint32_t ranks() const { return group_.ranks(); }
  [[nodiscard]] bool leads() const { return group_.me() == GpuGroup::kLeader; }
  [[nodiscard]] Status RecordPacked();
  [[nodiscard]] Result<bool> IsPacked() { return HasRun(ended_); }
  void TellPacked() { group_.Tell(&GpuPeerInfo::packed, number_); }
  [[nodiscard]] bool HasTold(uint32_t rank) const;
  [[nodiscard]] Status ReduceAll();
  [[nodiscard]] Result<bool> IsReduced() { return HasRun(ended_); }
  void TellReduced() { group_.Tell(&GpuPeerInfo::reduced, number_); }
  [[nodiscard]] bool HasResult() const;

  [[nodiscard]] Status Begin() override;
  [[nodiscard]] Result<bool> Reduce() override { return steps_.Go(*this); }

  LeaderWindow steps_;
  GpuEvent ended_;  ///< behind this rank's packing, then behind the leader's reduction
};

}  // namespace horoacc::cuda
