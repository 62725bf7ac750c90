#include "schedule/generate/across.h"

#include "schedule/generate/ring.h"
#include "schedule/generate/trees.h"

namespace horoacc::schedule {

Step AcrossStage::step(uint32_t host, uint32_t shard, uint32_t lane, uint32_t k,
                       const Operand& operand, uint32_t after) const {
  const uint32_t hosts = topology_.hosts();
  Step step = across_ == Across::kRing ? RingAllreduceStep(hosts, host, k, operand)
                                       : TreesAllreduceStep(hosts, host, lane, true, operand);
  PlacePeers(step, [&](uint32_t peer_host) { return topology_.first(peer_host) + shard; });
  PlaceChunks(step, shard * parts(), 1);
  step.channel = static_cast<uint8_t>(step.channel + first_lane_);
  step.after <<= first_lane_;
  const bool begins = across_ == Across::kRing ? k == 0 : lane % 2 == 0;
  if (begins) step.after |= after;
  return step;
}

}  // namespace horoacc::schedule
