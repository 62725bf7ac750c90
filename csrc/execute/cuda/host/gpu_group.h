#pragma once
// The GPUs of a process set: the ranks exchange their capabilities once, agree on a mode, and open
// each other's memory.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "execute/cuda/device/gpu.h"
#include "execute/cuda/host/mode_by_size.h"
#include "execute/cuda/host/peer_info.h"
#include "execute/cuda/host/shares.h"
#include "execute/cuda/host/ticket.h"
#include "execute/cuda/host/watch.h"
#include "execute/cuda/host/window_line.h"
#include "execute/kernels/reduce.h"

namespace horoacc::cuda {

class NcclComm;
class PinnedBlocks;
class GroupKernels;

/// A GPU group's place in its process set.
struct GpuGroupPlace {
  GpuGroupSegment segment;
  TicketLanes* ticket_lanes = nullptr;  ///< of the host
  uint64_t lanes = 0;                   ///< this rank's, a bit each
  uint32_t me = 0;
  uint32_t set = 0;                     ///< the process set's number
  uint32_t set_ranks = 0;               ///< of the process set, on all hosts
  std::vector<uint32_t> members;        ///< by index: the rank's number in the process set
  bool spans_hosts = false;             ///< NCCL reduces across hosts, whose ranks agree together
  std::vector<bool> in_this_process;    ///< by index
  std::function<bool(uint32_t)> alive;  ///< whether the process of a rank is there
  std::function<void()> ring_others;    ///< to be called when this rank's peer info has changed
  std::function<bool()> holds_news;     ///< whether others wait for messages that this rank holds
  size_t buffer_bytes = 0;              ///< of each rank's fusion buffer, the same on all
  GpuMode wanted = GpuMode::kAuto;      ///< the same on all
  /// With kAuto: what was measured, the same on all; null: nothing.
  std::shared_ptr<const schedule::MeasuredTable> measured;
  bool any_order = false;    ///< sums may have NCCL's order with kAuto, too; the same on all
  std::string algorithm;     ///< of allreduces in kernels; "": the size decides
  std::string nccl_library;  ///< if NCCL is wanted: its path, or its soname
  std::atomic<uint32_t>* polling = nullptr;     ///< see Watch
  std::atomic<uint64_t>* overlapped = nullptr;  ///< a counter: Counters::gpu_overlapped_buckets
};

/// The text that two ranks of a process set have different versions of NCCL.
[[nodiscard]] std::string OtherVersion(uint32_t one, const std::string& version, uint32_t other,
                                       const std::string& other_version);

/// Some fifty methods, since a run asks one object after all that the ranks have agreed on. One
/// thread at a time. No call waits, but the destructor for some seconds: for its streams, and
/// until the other ranks have closed this rank's memory.
class GpuGroup {
 public:
  using TicketCount = uint64_t;
  static constexpr uint32_t kTicketLanes = TicketLanes::kLanes;
  static constexpr uint32_t kLeader = 0;  ///< its kernels reduce in mode L; it takes the tickets

  /// `gpu`: of this rank's first call.
  GpuGroup(GpuGroupPlace place, std::shared_ptr<Gpu> gpu, std::shared_ptr<PinnedBlocks> blocks);
  ~GpuGroup();
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  /// Continues the capability exchange. False: another rank has to move first.
  bool Advance();
  /// From the end of the exchange on: the usual mode, or why the mode of the setting is impossible.
  /// The same on all ranks.
  [[nodiscard]] const std::optional<Result<GpuMode>>& agreed() const { return agreed_; }
  /// Of an exchange of several hosts: the news of this host's ranks, and those of all hosts, which
  /// the leader takes. True: they were new.
  [[nodiscard]] HostNews News() const;
  bool Hear(const HostNews& news);
  /// The GPU of a rank's calls, by its number there.
  [[nodiscard]] int device(uint32_t index) const { return place_.segment.infos[index].device; }

  // To be called only if GPUs reduce in the agreed mode.
  /// The mode for an allreduce of so many bytes. kNccl only if `nccl_can` do it.
  [[nodiscard]] GpuMode ModeFor(uint64_t bytes, bool nccl_can) const;
  [[nodiscard]] Gpu& gpu() const { return *gpu_; }
  [[nodiscard]] uint32_t me() const { return place_.me; }
  [[nodiscard]] uint32_t ranks() const { return place_.segment.ranks; }  ///< of this host
  /// Whether the process set has no other rank, on any host.
  [[nodiscard]] bool alone() const { return place_.set_ranks == 1; }
  [[nodiscard]] GpuPeerInfo& info(uint32_t index) const { return place_.segment.infos[index]; }
  [[nodiscard]] const GpuGroupSegment& segment() const { return place_.segment; }
  [[nodiscard]] TicketLanes& ticket_lanes() const { return *place_.ticket_lanes; }
  /// The lanes of all its ranks, a bit each.
  [[nodiscard]] uint64_t lanes() const;
  [[nodiscard]] size_t buffer_bytes() const { return place_.buffer_bytes; }
  /// Packs and unpacks; in modes, what waits for other ranks is on another stream, so that it holds
  /// up no packing.
  [[nodiscard]] void* stream() const { return shares_.stream(); }
  [[nodiscard]] void* reducing_stream() const { return shares_.reducing_stream(); }
  /// A rank's fusion buffer, at the address that this rank's GPU knows it by.
  [[nodiscard]] std::byte* buffer(uint32_t index) const { return shares_.memory(index); }
  /// Null unless mode K was opened.
  [[nodiscard]] GroupKernels* kernels() const { return kernels_.get(); }
  /// Null unless mode NCCL was opened.
  [[nodiscard]] NcclComm* nccl() const { return nccl_.get(); }
  /// Copies tensors, counted in bytes, in one launch on the stream.
  [[nodiscard]] Status Copy(const std::vector<ha_cuda_tensor>& moves) const;
  /// Reduces in one launch.
  [[nodiscard]] Status Reduce(const ReduceJob& job, void* stream) const;
  /// On the stream.
  [[nodiscard]] Result<GpuEvent> Record() const { return gpu_->Record(stream()); }
  /// On the other one.
  [[nodiscard]] Result<GpuEvent> RecordReduced() const { return gpu_->Record(reducing_stream()); }
  void RingOthers() const { place_.ring_others(); }
  /// Whether ranks of other hosts wait for messages that this rank has not sent yet.
  [[nodiscard]] bool HoldsNews() const { return place_.holds_news(); }
  /// Sets a count of this rank's peer info, for all others to see.
  void Tell(std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t value) const;
  [[nodiscard]] bool AllHave(std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t least) const;
  [[nodiscard]] std::atomic<uint32_t>& polling() const { return *place_.polling; }
  void CountOverlap() const { place_.overlapped->fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] WindowLine& line() { return line_; }
  /// The number of the next ticket: the same on all ranks.
  [[nodiscard]] uint64_t NextTicket() { return ++tickets_; }
  /// The number of what a rank tells next in GpuPeerInfo::stored: the same on all ranks.
  [[nodiscard]] uint64_t NextStore() { return ++stores_; }
  [[nodiscard]] TicketRow<uint64_t, kTicketLanes>& ticket_row() { return ticket_row_; }

 private:
  /// Counted over the attempts, so that it only grows.
  [[nodiscard]] uint32_t Counted(ExchangeStage stage) const {
    return static_cast<uint32_t>(stage) + attempt_ * kStagesOfAttempt;
  }
  [[nodiscard]] bool AllAt(ExchangeStage stage) const;
  void Reach(ExchangeStage stage, const Status& status);
  [[nodiscard]] std::optional<std::string> TroubleUpTo(ExchangeStage stage) const;
  [[nodiscard]] std::optional<std::string> TroubleHere(ExchangeStage stage) const;
  /// Of a set whose GPUs wait for those of other hosts: makes it the only such one of this host.
  /// False: another one is that still.
  [[nodiscard]] Result<bool> ClaimHost();
  void LeaveHost() const;
  [[nodiscard]] std::vector<ha_cuda_traits> Traits() const;
  [[nodiscard]] Status Offer();
  [[nodiscard]] Status Open();
  /// After this rank or another could not go on with an attempt.
  void GoOnAfter(ExchangeStage stage, const std::string& trouble);
  /// Chooses the modes that the ranks try to open. False: none, and the exchange is over.
  [[nodiscard]] bool Choose();
  void Settle(Result<GpuMode> agreed);
  [[nodiscard]] bool MayWantNccl() const;
  [[nodiscard]] Status FindNccl();
  [[nodiscard]] std::optional<std::string> WhyNotNccl() const;
  bool JoinNccl();

  GpuGroupPlace place_;
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<PinnedBlocks> blocks_;
  Watch watch_;
  GpuEvent offered_;                       ///< this rank's memory is ready for the others
  ModeBySize modes_{GpuMode::kCpuReduce};  ///< those that are opened
  std::vector<ModeBySize> attempts_;       ///< the same on all ranks
  uint32_t attempt_ = 0;
  std::optional<Result<GpuMode>> agreed_;
  std::unique_ptr<NcclComm> nccl_;  ///< destroyed after shares_, when no rank's stream works
  bool joins_nccl_ = false;
  int64_t claim_limit_ns_ = 0;
  Shares shares_;
  std::unique_ptr<GroupKernels> kernels_;
  WindowLine line_;
  uint64_t tickets_ = 0;
  uint64_t stores_ = 0;
  TicketRow<uint64_t, kTicketLanes> ticket_row_;
};

}  // namespace horoacc::cuda
