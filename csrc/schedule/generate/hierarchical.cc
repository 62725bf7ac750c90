#include "schedule/generate/hierarchical.h"

#include <utility>

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

Hierarchical::Hierarchical(Topology topology, Across across)
    : Schedule(
          {.goal = Goal::kAllreduce,
           .ranks = topology.ranks(),
           .lanes = 2 + AcrossStage(topology, across, 1).lanes(),
           .chunks = topology.fewest() * AcrossStage(topology, across, 1).parts(),
           .hosts_alike = topology.equal() && (topology.hosts() == 1 || across == Across::kRing)}),
      topology_(std::move(topology)),
      across_(topology_, across, 1) {}

uint32_t Hierarchical::steps(uint32_t rank, uint32_t lane) const {
  if (facts().ranks == 1) return lane == 0 ? 1 : 0;
  const uint32_t host = topology_.host_of(rank);
  const uint32_t shards = across_.shards();
  const bool inside = lane == 0 || lane + 1 == facts().lanes;
  if (inside) return topology_.local(host) > 1 ? shards : 0;
  return rank - topology_.first(host) < shards ? across_.steps() : 0;
}

Step Hierarchical::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  const uint32_t host = topology_.host_of(rank);
  const uint32_t first = topology_.first(host);
  const uint32_t local = topology_.local(host);
  const uint32_t i = rank - first;
  const uint8_t at_end = kPostscale;
  if (lane > 0 && lane + 1 < facts().lanes) {
    // A rank that is alone on its host has nothing to wait for.
    if (local == 1) {
      return across_.step(host, i, lane - 1, k, {Buffer::kInput, kPrescaleOwn, at_end}, 0);
    }
    return across_.step(host, i, lane - 1, k, {Buffer::kOutput, 0, at_end}, 1);
  }
  const uint8_t done = topology_.hosts() == 1 ? at_end : 0;
  Step step = lane == 0 ? RingReduceScatterStep(local, i, across_.shards(), k,
                                                {Buffer::kInput, kPrescaleOwn, done})
                        : RingAllGatherStep(local, i, across_.shards(), k);
  PlacePeers(step, [&](uint32_t member) { return first + member; });
  PlaceChunks(step, 0, across_.parts());
  step.channel = static_cast<uint8_t>(lane);
  if (lane > 0 && step.op == Op::kSend) step.after = (1u << lane) - 1;
  return step;
}

}  // namespace horoacc::schedule
