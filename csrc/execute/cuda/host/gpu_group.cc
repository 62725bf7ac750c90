#include "execute/cuda/host/gpu_group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "execute/cuda/nccl/nccl_comm.h"
#include "execute/cuda/persistent/group_kernels.h"

namespace horoacc::cuda {

GpuGroup::GpuGroup(GpuGroupPlace place, std::shared_ptr<Gpu> gpu,
                   std::shared_ptr<PinnedBlocks> blocks)
    : place_(std::move(place)),
      gpu_(std::move(gpu)),
      blocks_(std::move(blocks)),
      watch_(*place_.polling),
      shares_(gpu_, place_.segment, place_.me, place_.in_this_process, place_.alive) {}

GpuGroup::~GpuGroup() = default;

std::vector<ha_cuda_traits> GpuGroup::Traits() const {
  std::vector<ha_cuda_traits> traits;
  for (uint32_t r = 0; r < ranks(); ++r) traits.push_back(info(r).traits);
  return traits;
}

bool GpuGroup::AllAt(ExchangeStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    if (info(r).stage.load(std::memory_order_acquire) < Counted(stage)) return false;
  }
  return true;
}

// A rank tells all others if it cannot go on: they go on together, or not at all.
void GpuGroup::Reach(ExchangeStage stage, const Status& status) {
  GpuPeerInfo& own = info(me());
  if (!status.ok()) {
    GpuTrouble& trouble = own.trouble[attempt_];
    std::snprintf(trouble.why, sizeof trouble.why, "%s", status.error().message.c_str());
    trouble.at.store(static_cast<uint32_t>(stage), std::memory_order_release);
  }
  own.stage.store(Counted(stage), std::memory_order_release);
  RingOthers();
}

// Only up to a stage that all have reached: other ranks may be further, and must find the same.
std::optional<std::string> GpuGroup::TroubleUpTo(ExchangeStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    const GpuTrouble& trouble = info(r).trouble[attempt_];
    const uint32_t at = trouble.at.load(std::memory_order_acquire);
    if (at == 0 || at > static_cast<uint32_t>(stage)) continue;
    return "rank " + std::to_string(r) + " of the process set: " + trouble.why;
  }
  return std::nullopt;
}

bool GpuGroup::Advance() {
  if (agreed_) return false;
  const auto at = static_cast<ExchangeStage>(info(me()).stage.load(std::memory_order_relaxed) -
                                             Counted(ExchangeStage::kAbsent));
  if (at == ExchangeStage::kAbsent) {
    GpuPeerInfo& own = info(me());
    own.device = gpu_->device();
    Status told = gpu_->Call(&ha_cuda_plugin::traits, &own.traits);
    own.lanes = own.traits.concurrent != 0 ? TicketLanes::kAllLanes : place_.lanes;
    if (told.ok() && MayWantNccl()) {
      Status found = FindNccl();
      if (place_.wanted == GpuMode::kNccl) told = std::move(found);
    }
    Reach(ExchangeStage::kIntroduced, told);
    return true;
  }
  if (!AllAt(at)) return false;
  if (const auto trouble = TroubleUpTo(at)) {
    GoOnAfter(at, *trouble);
    return true;
  }
  switch (at) {
    case ExchangeStage::kIntroduced:
      if (Choose()) Reach(ExchangeStage::kOffered, Offer());
      return true;
    case ExchangeStage::kOffered: {
      const Result<bool> ready = gpu_->IsDone(offered_);
      watch_.Set(ready.ok() && !ready.value());
      if (ready.ok() && !ready.value()) return false;
      Reach(ExchangeStage::kOpened, ready.ok() ? Open() : Status(ready.error()));
      return true;
    }
    case ExchangeStage::kOpened:
      if (modes_.Has(GpuMode::kNccl)) return JoinNccl();
      break;
    default:
      break;
  }
  Settle(modes_.usual());
  return true;
}

// All ranks come here at the same stage, with the same list of attempts.
void GpuGroup::GoOnAfter(ExchangeStage stage, const std::string& trouble) {
  const bool automatic = place_.wanted == GpuMode::kAuto;
  if (automatic && stage == ExchangeStage::kJoined) {
    modes_.Drop(GpuMode::kNccl);
    return Settle(modes_.usual());
  }
  if (attempt_ + 1 < attempts_.size()) {
    modes_ = attempts_[++attempt_];
    kernels_.reset();
    offered_ = nullptr;
    return Reach(ExchangeStage::kOffered, Offer());
  }
  shares_.Close();
  Settle(automatic ? GpuMode::kCpuReduce : Result<GpuMode>(RefuseMode(place_.wanted, trouble)));
}

bool GpuGroup::Choose() {
  const std::vector<ha_cuda_traits> traits = Traits();
  Result<GpuMode> chosen = ChooseMode(place_.wanted, traits);
  const auto no_nccl = WhyNotNccl();
  if (chosen.ok() && chosen.value() == GpuMode::kNccl && no_nccl)
    chosen = RefuseMode(GpuMode::kNccl, *no_nccl);
  if (!chosen.ok() || chosen.value() == GpuMode::kCpuReduce) {
    Settle(std::move(chosen));
    return false;
  }
  if (place_.wanted != GpuMode::kAuto) {
    attempts_.emplace_back(chosen.value());
  } else {
    const std::vector<GpuMode> possible = PossibleModes(traits);
    if (place_.measured) {
      std::vector<GpuMode> others(possible.begin() + 1, possible.end());
      if (MayWantNccl() && !no_nccl) others.push_back(GpuMode::kNccl);
      attempts_.emplace_back(chosen.value(), others, *place_.measured, RanksOfGpus(traits));
    }
    for (const GpuMode mode : possible) attempts_.emplace_back(mode);
  }
  modes_ = attempts_.front();
  return true;
}

uint64_t GpuGroup::lanes() const {
  uint64_t lanes = 0;
  for (uint32_t r = 0; r < ranks(); ++r) lanes |= info(r).lanes;
  return lanes;
}

GpuMode GpuGroup::ModeFor(uint64_t bytes, bool nccl_can) const {
  const GpuMode mode = modes_.For(bytes);
  if (mode != GpuMode::kNccl || nccl_can) return mode;
  return modes_.usual() == GpuMode::kNccl ? GpuMode::kCpuReduce : modes_.usual();
}

void GpuGroup::Settle(Result<GpuMode> agreed) {
  const bool reduce = agreed.ok() && agreed.value() != GpuMode::kCpuReduce;
  if (!reduce || !modes_.Has(GpuMode::kNccl)) nccl_.reset();
  agreed_ = std::move(agreed);
}

// Kernels write flags into other ranks' memory, which must be zero before.
Status GpuGroup::Offer() {
  const bool kernels = modes_.Has(GpuMode::kKernel);
  // What is allocated now serves later attempts.
  const bool later = std::any_of(attempts_.begin() + attempt_, attempts_.end(),
                                 [](const auto& modes) { return modes.Has(GpuMode::kKernel); });
  const uint64_t beside = later ? GroupKernels::BytesBeside(buffer_bytes()) : 0;
  HA_TRY(shares_.Offer(buffer_bytes() + beside, modes_.usual() != GpuMode::kNccl));
  if (modes_.Has(GpuMode::kNccl) && me() == kLeader) {
    HA_ASSIGN(info(me()).nccl_id, nccl_->MakeId());
  }
  if (!kernels) return {};
  HA_TRY(gpu_->Call(&ha_cuda_plugin::zero, stream(), buffer(me()) + buffer_bytes(), beside));
  HA_ASSIGN(offered_, Record());
  kernels_ = std::make_unique<GroupKernels>(*this, blocks_,
                                            KernelRules{.ranks = ranks(),
                                                        .blocks = KernelBlocks(Traits()),
                                                        .bytes = beside,
                                                        .algorithm = place_.algorithm});
  return kernels_->Check();
}

void GpuGroup::Tell(std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t value) const {
  (info(me()).*count).store(value, std::memory_order_release);
  RingOthers();
}

bool GpuGroup::AllHave(std::atomic<uint64_t> GpuPeerInfo::* count, uint64_t least) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    if ((info(r).*count).load(std::memory_order_acquire) < least) return false;
  }
  return true;
}

Status GpuGroup::Reduce(const ReduceJob& job) const {
  const ha_cuda_reduce call{.sources = job.sources.data(),
                            .destinations = job.destinations.data(),
                            .source_count = job.sources.size(),
                            .destination_count = job.destinations.size(),
                            .count = job.count,
                            .type = static_cast<int>(job.type),
                            .op = static_cast<int>(job.op),
                            .pre = job.scale.pre,
                            .post = job.scale.post,
                            .divisor = job.scale.divisor};
  return gpu_->Call(&ha_cuda_plugin::reduce, stream(), &call);
}

Status GpuGroup::Copy(const std::vector<ha_cuda_tensor>& moves) const {
  return gpu_->Move(stream(), moves);
}

// Exchanges read all ranks' memory, too.
Status GpuGroup::Open() {
  if (modes_.usual() == GpuMode::kNccl) return {};
  for (uint32_t r = 0; r < ranks(); ++r) HA_TRY(shares_.OpenMemory(r));
  if (modes_.Has(GpuMode::kStream)) HA_TRY(shares_.PinWords());
  return {};
}

// The library is loaded only if the setting or a table of measured times names it.
bool GpuGroup::MayWantNccl() const {
  if (place_.wanted == GpuMode::kNccl) return true;
  return place_.wanted == GpuMode::kAuto && place_.any_order && place_.measured &&
         place_.measured->Has(MeasuredName(GpuMode::kNccl));
}

Status GpuGroup::FindNccl() {
  HA_ASSIGN(const NcclCalls calls, LoadNccl(place_.nccl_library));
  GpuPeerInfo& own = info(me());
  std::snprintf(own.nccl_version, sizeof own.nccl_version, "%s", calls.Version().c_str());
  nccl_ = std::make_unique<NcclComm>(gpu_, calls);
  return {};
}

// Ranks with different versions would not find each other, and wait for ever.
std::optional<std::string> GpuGroup::WhyNotNccl() const {
  const std::string first = info(0).nccl_version;
  if (first.empty()) return "rank 0 of the process set has no NCCL";
  for (uint32_t r = 1; r < ranks(); ++r) {
    if (info(r).nccl_version == first) continue;
    return "rank 0 of the process set has NCCL " + first + ", rank " + std::to_string(r) + " has " +
           info(r).nccl_version;
  }
  return std::nullopt;
}

// NCCL would wait for a rank that cannot begin, so the others look for its trouble as well.
bool GpuGroup::JoinNccl() {
  Status outcome;
  if (!joins_nccl_) {
    joins_nccl_ = true;
    outcome = nccl_->Begin(info(kLeader).nccl_id, ranks(), me());
    if (outcome.ok()) return true;
  } else if (!TroubleUpTo(ExchangeStage::kJoined)) {
    const Result<bool> settled = nccl_->Settled();
    watch_.Set(settled.ok() && !settled.value());
    if (settled.ok() && !settled.value()) return false;
    if (!settled.ok()) outcome = settled.error();
  }
  watch_.Set(false);
  Reach(ExchangeStage::kJoined, outcome);
  return true;
}

}  // namespace horoacc::cuda
