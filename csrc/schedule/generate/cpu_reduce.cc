#include "schedule/generate/cpu_reduce.h"

#include <utility>

namespace horoacc::schedule {
namespace {

constexpr uint32_t kShowInHostLane = 0;
constexpr uint32_t kReduceInHostLane = 1;
constexpr uint32_t kAcrossLane = 2;
constexpr uint8_t kShowInHostChannel = 0;
constexpr uint8_t kShareInHostChannel = 1;  // channels from 2 on belong to the stage across hosts

}  // namespace

CpuReduce::CpuReduce(Topology topology, Across across)
    : Schedule(
          {.goal = Goal::kAllreduce,
           .ranks = topology.ranks(),
           .lanes = 3 + AcrossStage(topology, across, kAcrossLane).lanes(),
           .chunks = topology.fewest() * AcrossStage(topology, across, kAcrossLane).parts(),
           .hosts_alike = topology.equal() && (topology.hosts() == 1 || across == Across::kRing)}),
      topology_(std::move(topology)),
      across_(topology_, across, kAcrossLane) {}

uint32_t CpuReduce::steps(uint32_t rank, uint32_t lane) const {
  if (facts().ranks == 1) return lane == kReduceInHostLane ? 1 : 0;
  const uint32_t host = topology_.host_of(rank);
  const uint32_t shards = across_.shards();
  const bool owner = rank - topology_.first(host) < shards;
  if (lane >= kAcrossLane && lane + 1 < facts().lanes) return owner ? across_.steps() : 0;
  if (topology_.local(host) == 1) return 0;
  const uint32_t others = shards - (owner ? 1 : 0);
  if (lane == kShowInHostLane) return others;
  if (lane == kReduceInHostLane) return owner ? 1 : 0;
  return others + (owner ? 1 : 0);
}

Step CpuReduce::step(uint32_t rank, uint32_t lane, uint32_t k) const {
  if (facts().ranks == 1) return CopyThrough(0, 1, kPrescaleOwn | kPostscale);
  const uint32_t host = topology_.host_of(rank);
  const uint32_t first = topology_.first(host);
  const uint32_t local = topology_.local(host);
  const uint32_t i = rank - first;
  if (lane >= kAcrossLane && lane + 1 < facts().lanes) {
    // A rank that is alone on its host has nothing to wait for.
    if (local == 1) {
      return across_.step(host, i, lane - kAcrossLane, k,
                          {Buffer::kInput, kPrescaleOwn, kPostscale}, 0);
    }
    return across_.step(host, i, lane - kAcrossLane, k, {Buffer::kOutput, 0, kPostscale},
                        1u << kReduceInHostLane);
  }
  Step step = lane == kShowInHostLane     ? Show(first, i, k)
              : lane == kReduceInHostLane ? ReduceShard(first, local, i)
                                          : Share(first, local, i, k);
  PlaceChunks(step, 0, across_.parts());
  return step;
}

// Sends to the owners behind this rank first, so that not all ranks begin with the same owner.
Step CpuReduce::Show(uint32_t first, uint32_t i, uint32_t k) const {
  const uint32_t shards = across_.shards();
  Step step;
  step.op = Op::kSend;
  step.channel = kShowInHostChannel;
  step.src = Buffer::kInput;
  step.src_chunk = i < shards ? (i + 1 + k) % shards : (i + k) % shards;
  step.sends = 1;
  step.peer[0] = first + step.src_chunk;
  return step;
}

Step CpuReduce::ReduceShard(uint32_t first, uint32_t local, uint32_t i) const {
  Step step;
  step.op = Op::kRecvReduce;
  step.channel = kShowInHostChannel;
  step.flags = kReceiveRange | kPrescaleOwn | kPrescaleReceived;
  if (topology_.hosts() == 1) step.flags |= kPostscale;
  step.peer[0] = first;
  step.peer[1] = local;
  step.src = Buffer::kInput;
  step.dst = Buffer::kOutput;
  step.src_chunk = step.dst_chunk = i;
  return step;
}

Step CpuReduce::Share(uint32_t first, uint32_t local, uint32_t i, uint32_t k) const {
  const uint32_t shards = across_.shards();
  const bool owner = i < shards;
  Step step;
  step.channel = kShareInHostChannel;
  if (owner && k == 0) {
    step.op = Op::kSend;
    step.flags = kSendRange;
    step.peer[0] = first;
    step.peer[1] = local;
    step.src = Buffer::kOutput;
    step.src_chunk = i;
    step.after = (1u << (facts().lanes - 1)) - 1 - (1u << kShowInHostLane);
    return step;
  }
  step.op = Op::kRecv;
  step.dst = Buffer::kOutput;
  step.dst_chunk = (i + k) % shards;
  step.receives = 1;
  step.peer[0] = first + step.dst_chunk;
  return step;
}

}  // namespace horoacc::schedule
