#include "execute/cuda/team.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace horoacc::cuda {

Team::Team(TeamPlace place, std::shared_ptr<Gpu> gpu)
    : place_(std::move(place)),
      gpu_(std::move(gpu)),
      shares_(gpu_, place_.board, place_.me, place_.in_this_process, place_.alive) {}

bool Team::AllAt(MeetingStage stage) const {
  for (uint32_t r = 0; r < ranks(); ++r) {
    if (card(r).stage.load(std::memory_order_acquire) < static_cast<uint32_t>(stage)) return false;
  }
  return true;
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
    Reach(MeetingStage::kIntroduced, gpu_->Call(&ha_cuda_plugin::traits, &own.traits));
    return true;
  }
  if (!AllAt(at)) return false;
  if (const auto trouble = TroubleUpTo(at)) {
    shares_.Close();
    agreed_ = GpuMode::kCpuReduce;
    if (place_.wanted != GpuMode::kAuto) agreed_ = RefuseMode(place_.wanted, *trouble);
    return true;
  }
  if (at == MeetingStage::kIntroduced) {
    std::vector<ha_cuda_traits> traits;
    for (uint32_t r = 0; r < ranks(); ++r) traits.push_back(card(r).traits);
    Result<GpuMode> chosen = ChooseMode(place_.wanted, traits);
    if (!chosen.ok() || chosen.value() == GpuMode::kCpuReduce) {
      agreed_ = std::move(chosen);
      return true;
    }
    candidate_ = chosen.value();
  }
  switch (at) {
    case MeetingStage::kIntroduced:
      Reach(MeetingStage::kOffered, shares_.Offer(buffer_bytes()));
      break;
    case MeetingStage::kOffered:
      Reach(MeetingStage::kOpened, Open());
      break;
    default:
      agreed_ = candidate_;
  }
  return true;
}

// In mode L the leader's kernels go everywhere, and the others wait for its event alone.
Status Team::Open() {
  const bool leader = me() == kLeader;
  if (candidate_ == GpuMode::kStream) {
    for (uint32_t r = 0; r < ranks(); ++r) HA_TRY(shares_.OpenMemory(r));
    return shares_.PinWords();
  }
  if (!leader) return shares_.OpenReducedEvent(kLeader);
  for (uint32_t r = 0; r < ranks(); ++r) {
    HA_TRY(shares_.OpenMemory(r));
    HA_TRY(shares_.OpenPackedEvent(r));
  }
  return {};
}

}  // namespace horoacc::cuda
