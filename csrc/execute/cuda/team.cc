#include "execute/cuda/team.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "execute/cuda/nccl_comm.h"
#include "execute/cuda/team_kernels.h"

namespace horoacc::cuda {

Team::Team(TeamPlace place, std::shared_ptr<Gpu> gpu, std::shared_ptr<PinnedBlocks> blocks)
    : place_(std::move(place)),
      gpu_(std::move(gpu)),
      blocks_(std::move(blocks)),
      watch_(*place_.polling),
      shares_(gpu_, place_.board, place_.me, place_.in_this_process, place_.alive) {}

Team::~Team() = default;

std::vector<ha_cuda_traits> Team::Traits() const {
  std::vector<ha_cuda_traits> traits;
  for (uint32_t r = 0; r < ranks(); ++r) traits.push_back(card(r).traits);
  return traits;
}

bool Team::AllAt(MeetingStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    if (card(r).stage.load(std::memory_order_acquire) < static_cast<uint32_t>(stage)) return false;
  }
  return true;
}

bool Team::AllHaveRoom() const {
  bool all = true;
  for (uint32_t r = 0; r < ranks(); ++r) all = all && card(r).room_for_kernels;
  return all;
}

// What a rank cannot do is told to all: they go on together, or not at all.
void Team::Reach(MeetingStage stage, const Status& status) {
  TeamCard& own = card(me());
  if (!status.ok()) {
    std::snprintf(own.trouble, sizeof own.trouble, "%s", status.error().message.c_str());
    own.trouble_at.store(static_cast<uint32_t>(stage), std::memory_order_release);
  }
  own.stage.store(static_cast<uint32_t>(stage), std::memory_order_release);
  RingOthers();
}

// Up to a stage that all have reached: others may be further, and must find the same.
std::optional<std::string> Team::TroubleUpTo(MeetingStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    const uint32_t at = card(r).trouble_at.load(std::memory_order_acquire);
    if (at == 0 || at > static_cast<uint32_t>(stage)) continue;
    return "rank " + std::to_string(r) + " of the process set: " + card(r).trouble;
  }
  return std::nullopt;
}

bool Team::Advance() {
  if (agreed_) return false;
  const auto at = static_cast<MeetingStage>(card(me()).stage.load(std::memory_order_relaxed));
  if (at == MeetingStage::kAbsent) {
    TeamCard& own = card(me());
    own.device = gpu_->device();
    own.room_for_kernels = place_.room_for_kernels;
    Status told = gpu_->Call(&ha_cuda_plugin::traits, &own.traits);
    if (told.ok() && place_.wanted == GpuMode::kNccl) told = FindNccl();
    Reach(MeetingStage::kIntroduced, told);
    return true;
  }
  if (!AllAt(at)) return false;
  if (const auto trouble = TroubleUpTo(at)) {
    shares_.Close();
    const bool ordered = place_.wanted != GpuMode::kAuto;
    Settle(ordered ? Result<GpuMode>(RefuseMode(place_.wanted, *trouble)) : GpuMode::kCpuReduce);
    return true;
  }
  if (at == MeetingStage::kIntroduced) {
    Result<GpuMode> chosen = ChooseMode(place_.wanted, Traits(), AllHaveRoom());
    if (chosen.ok() && chosen.value() == GpuMode::kNccl) {
      if (const auto why = WhyNotNccl()) chosen = RefuseMode(GpuMode::kNccl, *why);
    }
    if (!chosen.ok() || chosen.value() == GpuMode::kCpuReduce) {
      Settle(std::move(chosen));
      return true;
    }
    candidate_ = chosen.value();
  }
  switch (at) {
    case MeetingStage::kIntroduced:
      Reach(MeetingStage::kOffered, Offer());
      break;
    case MeetingStage::kOffered: {
      if (candidate_ == GpuMode::kNccl) return JoinNccl();
      const Result<bool> ready = gpu_->IsDone(offered_);
      watch_.Set(ready.ok() && !ready.value());
      if (ready.ok() && !ready.value()) return false;
      Reach(MeetingStage::kOpened, ready.ok() ? Open() : Status(ready.error()));
      break;
    }
    default:
      Settle(candidate_);
  }
  return true;
}

void Team::Settle(Result<GpuMode> agreed) {
  if (!agreed.ok() || agreed.value() != GpuMode::kNccl) nccl_.reset();
  agreed_ = std::move(agreed);
}

// Kernels write flags into each other's memory, which have to be zero before.
Status Team::Offer() {
  if (candidate_ == GpuMode::kNccl) return OfferNccl();
  if (candidate_ != GpuMode::kKernel) return shares_.Offer(buffer_bytes(), true);
  const uint64_t beside = TeamKernels::BytesBeside(buffer_bytes());
  HA_TRY(shares_.Offer(buffer_bytes() + beside, true));
  HA_TRY(gpu_->Call(&ha_cuda_plugin::zero, stream(), buffer(me()) + buffer_bytes(), beside));
  HA_ASSIGN(offered_, gpu_->Record(stream()));
  kernels_ = std::make_unique<TeamKernels>(*this, blocks_,
                                           KernelRules{.ranks = ranks(),
                                                       .blocks = KernelBlocks(Traits()),
                                                       .bytes = beside,
                                                       .algorithm = place_.algorithm});
  return kernels_->Check();
}

Status Team::Copy(const std::vector<ha_cuda_tensor>& moves) const {
  if (moves.empty()) return {};
  const ha_cuda_pack job{.tensors = moves.data(),
                         .tensor_count = moves.size(),
                         .from_type = static_cast<int>(DType::kUInt8),
                         .to_type = static_cast<int>(DType::kUInt8),
                         .factor = 1,
                         .nonfinite = nullptr};
  return gpu_->Call(&ha_cuda_plugin::pack, stream(), &job);
}

// Exchanges take from all ranks' memory. In mode L the leader's kernels reduce, and the others wait
// for its event alone.
Status Team::Open() {
  for (uint32_t r = 0; r < ranks(); ++r) HA_TRY(shares_.OpenMemory(r));
  if (candidate_ == GpuMode::kStream) return shares_.PinWords();
  if (candidate_ != GpuMode::kLeader) return {};
  if (me() != kLeader) return shares_.OpenReducedEvent(kLeader);
  for (uint32_t r = 0; r < ranks(); ++r) HA_TRY(shares_.OpenPackedEvent(r));
  return {};
}

}  // namespace horoacc::cuda
