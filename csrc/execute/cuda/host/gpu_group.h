#pragma once
// The GPUs of a process set: the ranks meet once, agree on a mode, and open each other's memory.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "execute/cuda/host/gpu.h"
#include "execute/cuda/host/mode_by_size.h"
#include "execute/cuda/host/peer_info.h"
#include "execute/cuda/host/shares.h"
#include "execute/cuda/host/ticket.h"
#include "execute/cuda/host/watch.h"

namespace horoacc::cuda {

class NcclComm;
class PinnedBlocks;
class GroupKernels;

/// What a GPU group needs to know of its process set.
struct GpuGroupPlace {
  GpuGroupSegment control;
  TicketLanes* turns = nullptr;  ///< of the host
  uint64_t lanes = 0;            ///< this rank's there, a bit each
  uint32_t me = 0;
  std::vector<bool> in_this_process;    ///< by index
  std::function<bool(uint32_t)> alive;  ///< whether the process of a rank is there
  std::function<void()> ring_others;    ///< to be called when a peer info has changed
  size_t buffer_bytes = 0;              ///< of each rank's fusion buffer, the same on all
  GpuMode wanted = GpuMode::kAuto;      ///< the same on all
  /// With kAuto: what was measured, the same on all; null: nothing.
  std::shared_ptr<const schedule::MeasuredTable> measured;
  bool any_order = false;    ///< sums may have NCCL's order with kAuto, too; the same on all
  std::string algorithm;     ///< of allreduces in kernels; "": the size decides
  std::string nccl_library;  ///< if NCCL is wanted: its path, or its soname
  std::atomic<uint32_t>* polling = nullptr;  ///< somebody has to ask a GPU: see Watch
};

/// One thread at a time. Nothing waits, but the destructor a little, for its stream and for the
/// others to let go of its memory.
class GpuGroup {
 public:
  static constexpr uint32_t kLeader = 0;  ///< in mode L its kernels reduce; it asks for turns

  /// `gpu`: of this rank's first call.
  GpuGroup(GpuGroupPlace place, std::shared_ptr<Gpu> gpu, std::shared_ptr<PinnedBlocks> blocks);
  ~GpuGroup();
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  /// Goes on with the meeting. False: another rank has to move first.
  bool Advance();
  /// From the end of the meeting on: the usual mode, or why what was ordered is impossible. The
  /// same on all ranks.
  [[nodiscard]] const std::optional<Result<GpuMode>>& agreed() const { return agreed_; }
  /// The GPU of a rank's calls, by its number there.
  [[nodiscard]] int device(uint32_t index) const { return place_.control.infos[index].device; }

  // Once the mode is one in which GPUs reduce.
  /// Of an allreduce of so many bytes. kNccl only if `nccl_can` do it.
  [[nodiscard]] GpuMode ModeFor(uint64_t bytes, bool nccl_can) const;
  [[nodiscard]] Gpu& gpu() const { return *gpu_; }
  [[nodiscard]] uint32_t me() const { return place_.me; }
  [[nodiscard]] uint32_t ranks() const { return place_.control.ranks; }
  [[nodiscard]] GpuPeerInfo& info(uint32_t index) const { return place_.control.infos[index]; }
  [[nodiscard]] const GpuGroupSegment& control() const { return place_.control; }
  [[nodiscard]] TicketLanes& turns() const { return *place_.turns; }
  /// Of all its ranks, a bit each.
  [[nodiscard]] uint64_t lanes() const;
  [[nodiscard]] size_t buffer_bytes() const { return place_.buffer_bytes; }
  [[nodiscard]] void* stream() const { return shares_.stream(); }
  /// A rank's fusion buffer, where this rank's GPU finds it.
  [[nodiscard]] std::byte* buffer(uint32_t index) const { return shares_.memory(index); }
  /// Of a rank, and of the leader. Only if mode L is, and the others' only where they are needed.
  [[nodiscard]] void* packed_event(uint32_t index) const { return shares_.packed_event(index); }
  [[nodiscard]] void* reduced_event() const { return shares_.reduced_event(kLeader); }
  /// If mode K is among those that were opened, else null.
  [[nodiscard]] GroupKernels* kernels() const { return kernels_.get(); }
  /// If mode NCCL is, else null.
  [[nodiscard]] NcclComm* nccl() const { return nccl_.get(); }
  /// Copies bytes as they are, in one launch on the stream: tensors of every type.
  [[nodiscard]] Status Copy(const std::vector<ha_cuda_tensor>& moves) const;
  void RingOthers() const { place_.ring_others(); }
  [[nodiscard]] std::atomic<uint32_t>& polling() const { return *place_.polling; }
  /// The number of the next window: the same on all ranks.
  [[nodiscard]] uint64_t NextWindow() { return ++windows_; }
  /// The same of turns.
  [[nodiscard]] uint64_t NextTurn() { return ++turns_; }

 private:
  [[nodiscard]] bool AllAt(ExchangeStage stage) const;
  void Reach(ExchangeStage stage, const Status& status);
  [[nodiscard]] std::optional<std::string> TroubleUpTo(ExchangeStage stage) const;
  /// Of every rank, in the stage that it has reached.
  [[nodiscard]] std::vector<ha_cuda_traits> Traits() const;
  [[nodiscard]] Status Offer();
  [[nodiscard]] Status Open();
  /// What the ranks try to open; false: there is nothing, and all is settled.
  [[nodiscard]] bool Choose();
  void Settle(Result<GpuMode> agreed);
  // nccl_meeting.cc
  [[nodiscard]] bool MayWantNccl() const;
  [[nodiscard]] Status FindNccl();
  [[nodiscard]] std::optional<std::string> WhyNotNccl() const;
  bool JoinNccl();

  GpuGroupPlace place_;
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<PinnedBlocks> blocks_;
  Watch watch_;
  GpuEvent offered_;                       ///< what the others may use is ready for them
  ModeBySize modes_{GpuMode::kCpuReduce};  ///< those that are opened
  std::optional<Result<GpuMode>> agreed_;
  std::unique_ptr<NcclComm> nccl_;  ///< goes when no rank's stream works any more: after shares_
  bool joins_nccl_ = false;
  Shares shares_;
  std::unique_ptr<GroupKernels> kernels_;
  uint64_t windows_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace horoacc::cuda
