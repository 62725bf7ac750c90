// What a GPU group's meeting is about if NCCL is wanted.
#include <cstdio>

#include "execute/cuda/host/gpu_group.h"
#include "execute/cuda/nccl/nccl_comm.h"

namespace horoacc::cuda {

// What nobody has measured is not loaded unless it is ordered.
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

// Two versions would not find each other, and one would wait.
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

// A rank that cannot begin never comes: then nobody goes on waiting for it.
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
