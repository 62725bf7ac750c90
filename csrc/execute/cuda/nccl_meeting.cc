// What a team's meeting is about if NCCL is wanted.
#include <cstdio>

#include "execute/cuda/nccl_comm.h"
#include "execute/cuda/team.h"

namespace horoacc::cuda {

// What nobody has measured is not loaded unless it is ordered.
bool Team::MayWantNccl() const {
  if (place_.wanted == GpuMode::kNccl) return true;
  return place_.wanted == GpuMode::kAuto && place_.any_order && place_.measured &&
         place_.measured->Has(MeasuredName(GpuMode::kNccl));
}

Status Team::FindNccl() {
  HA_ASSIGN(const NcclCalls calls, LoadNccl(place_.nccl_library));
  TeamCard& own = card(me());
  std::snprintf(own.nccl_version, sizeof own.nccl_version, "%s", calls.Version().c_str());
  nccl_ = std::make_unique<NcclComm>(gpu_, calls);
  return {};
}

// Two versions would not find each other, and one would wait.
std::optional<std::string> Team::WhyNotNccl() const {
  const std::string first = card(0).nccl_version;
  if (first.empty()) return "rank 0 of the process set has no NCCL";
  for (uint32_t r = 1; r < ranks(); ++r) {
    if (card(r).nccl_version == first) continue;
    return "rank 0 of the process set has NCCL " + first + ", rank " + std::to_string(r) + " has " +
           card(r).nccl_version;
  }
  return std::nullopt;
}

// A rank that cannot begin never comes: then nobody goes on waiting for it.
bool Team::JoinNccl() {
  Status outcome;
  if (!joins_nccl_) {
    joins_nccl_ = true;
    outcome = nccl_->Begin(card(kLeader).nccl_id, ranks(), me());
    if (outcome.ok()) return true;
  } else if (!TroubleUpTo(MeetingStage::kJoined)) {
    const Result<bool> settled = nccl_->Settled();
    watch_.Set(settled.ok() && !settled.value());
    if (settled.ok() && !settled.value()) return false;
    if (!settled.ok()) outcome = settled.error();
  }
  watch_.Set(false);
  Reach(MeetingStage::kJoined, outcome);
  return true;
}

}  // namespace horoacc::cuda
