#include "execute/cuda/host/gpu_group.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "execute/cuda/nccl/nccl_comm.h"
#include "execute/cuda/persistent/group_kernels.h"

namespace horoacc::cuda {
namespace {

constexpr int64_t kClaimLimit = 2 * kSecond;

}  // namespace

GpuGroup::GpuGroup(GpuGroupPlace place, std::shared_ptr<Gpu> gpu,
                   std::shared_ptr<PinnedBlocks> blocks)
    : place_(std::move(place)),
      gpu_(std::move(gpu)),
      blocks_(std::move(blocks)),
      watch_(*place_.polling),
      shares_(gpu_, place_.segment, place_.me, place_.in_this_process, place_.alive) {}

// The host is given up when nothing of the set works on the GPU any more.
GpuGroup::~GpuGroup() {
  kernels_.reset();
  shares_.Close();
  nccl_.reset();
  LeaveHost();
}

std::vector<ha_cuda_traits> GpuGroup::Traits() const {
  std::vector<ha_cuda_traits> traits;
  for (uint32_t r = 0; r < ranks(); ++r) traits.push_back(info(r).traits);
  return traits;
}

bool GpuGroup::AllAt(ExchangeStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    if (info(r).stage.load(std::memory_order_acquire) < Counted(stage)) return false;
  }
  return !place_.spans_hosts ||
         info(kLeader).hosts_stage.load(std::memory_order_acquire) >= Counted(stage);
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
  if (!place_.spans_hosts) return TroubleHere(stage);
  const uint32_t at = info(kLeader).hosts_trouble_at.load(std::memory_order_acquire);
  if (at == 0 || at > static_cast<uint32_t>(stage)) return std::nullopt;
  return info(kLeader).hosts_why;
}

std::optional<std::string> GpuGroup::TroubleHere(ExchangeStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    const GpuTrouble& trouble = info(r).trouble[attempt_];
    const uint32_t at = trouble.at.load(std::memory_order_acquire);
    if (at == 0 || at > static_cast<uint32_t>(stage)) continue;
    return "rank " + std::to_string(place_.members[r]) + " of the process set: " + trouble.why;
  }
  return std::nullopt;
}

// Hosts exchange news in the first attempt, and only the setting has NCCL reduce across hosts:
// there is no other one.
HostNews GpuGroup::News() const {
  HostNews news;
  news.lowest = place_.members[0];
  news.stage = info(0).stage.load(std::memory_order_acquire);
  for (uint32_t r = 1; r < ranks(); ++r)
    news.stage = std::min(news.stage, info(r).stage.load(std::memory_order_acquire));
  ExchangeStage at = ExchangeStage::kAbsent;
  std::optional<std::string> trouble;
  while (!trouble && at != ExchangeStage::kJoined) {
    at = static_cast<ExchangeStage>(static_cast<uint32_t>(at) + 1);
    trouble = TroubleHere(at);
    if (!trouble && at == ExchangeStage::kIntroduced && news.stage > 0) trouble = WhyNotNccl();
  }
  if (trouble) {
    news.trouble_at = static_cast<uint32_t>(at);
    std::snprintf(news.why, sizeof news.why, "%s", trouble->c_str());
  }
  if (news.stage > 0)
    std::memcpy(news.nccl_version, info(0).nccl_version, sizeof info(0).nccl_version);
  news.nccl_id = info(0).nccl_id;
  return news;
}

bool GpuGroup::Hear(const HostNews& news) {
  GpuPeerInfo& own = info(me());
  const uint32_t stage = own.hosts_stage.load(std::memory_order_relaxed);
  bool heard = news.stage > stage;
  if (own.hosts_trouble_at.load(std::memory_order_relaxed) == 0 && news.trouble_at != 0) {
    std::memcpy(own.hosts_why, news.why, sizeof own.hosts_why);
    own.hosts_trouble_at.store(news.trouble_at, std::memory_order_release);
    heard = true;
  }
  if (!heard) return false;
  const auto offered = static_cast<uint32_t>(ExchangeStage::kOffered);
  if (stage < offered && news.stage >= offered) own.nccl_id = news.nccl_id;
  own.hosts_stage.store(news.stage, std::memory_order_release);
  RingOthers();
  return true;
}

// A set that has been removed gives its host up when its last work has ended.
Result<bool> GpuGroup::ClaimHost() {
  if (!place_.spans_hosts || me() != kLeader) return true;
  uint32_t other = 0;
  if (ticket_lanes().spanning.compare_exchange_strong(other, place_.set + 1,
                                                      std::memory_order_acq_rel))
    return true;
  const int64_t now = NowNs();
  if (claim_limit_ns_ == 0) claim_limit_ns_ = now + kClaimLimit;
  if (now < claim_limit_ns_) return false;
  return MakeError(ErrorKind::kConfig, "on its host NCCL reduces across hosts for process set " +
                                           std::to_string(other - 1) +
                                           ", and does so for one set at a time");
}

void GpuGroup::LeaveHost() const {
  uint32_t own = place_.set + 1;
  if (place_.spans_hosts && me() == kLeader)
    ticket_lanes().spanning.compare_exchange_strong(own, 0, std::memory_order_acq_rel);
}

bool GpuGroup::Advance() {
  if (agreed_) return false;
  const auto at = static_cast<ExchangeStage>(info(me()).stage.load(std::memory_order_relaxed) -
                                             Counted(ExchangeStage::kAbsent));
  if (at == ExchangeStage::kAbsent) {
    const Result<bool> claimed = ClaimHost();
    watch_.Set(claimed.ok() && !claimed.value());
    if (claimed.ok() && !claimed.value()) return false;
    GpuPeerInfo& own = info(me());
    own.device = gpu_->device();
    Status told =
        claimed.ok() ? gpu_->Call(&ha_cuda_plugin::traits, &own.traits) : Status(claimed.error());
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
  if (!reduce) LeaveHost();
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
  if (modes_.Has(GpuMode::kNccl) && place_.members[me()] == 0) {
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

Status GpuGroup::Reduce(const ReduceJob& job, void* stream) const {
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
  return gpu_->Call(&ha_cuda_plugin::reduce, stream, &call);
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
  if (first.empty())
    return "rank " + std::to_string(place_.members[0]) + " of the process set has no NCCL";
  for (uint32_t r = 1; r < ranks(); ++r) {
    if (info(r).nccl_version != first)
      return OtherVersion(place_.members[0], first, place_.members[r], info(r).nccl_version);
  }
  return std::nullopt;
}

std::string OtherVersion(uint32_t one, const std::string& version, uint32_t other,
                         const std::string& other_version) {
  return "rank " + std::to_string(one) + " of the process set has NCCL " + version + ", rank " +
         std::to_string(other) + " has " + other_version;
}

// NCCL would wait for a rank that cannot begin, so the others look for its trouble as well.
bool GpuGroup::JoinNccl() {
  Status outcome;
  if (!joins_nccl_) {
    joins_nccl_ = true;
    outcome = nccl_->Begin(info(kLeader).nccl_id, place_.set_ranks, place_.members[me()]);
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
