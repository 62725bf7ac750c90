#pragma once
// CPU-Reduce (DeepNCCL; BytePS's "summation service" is a relative): the host's shared memory is
// the parameter server. Every rank owns a shard and reduces it from all ranks of the host in one
// pass, instead of one after the other as a ring does.
#include "schedule/generate/hierarchical.h"

namespace horoacc::schedule {

/// Lanes are the stages of the pipeline, and windows follow each other through them:
///
///   0 show     every rank shows its shards to their owners (the copy to shared memory, if any)
///   1 reduce   an owner reduces its shard from all ranks in one pass
///   2 ...      across hosts, one rail a shard (the socket stage)
///   last       owners show their results, the others take them
///
/// A host sends 2S(H-1)/H into the network by rings.
class CpuReduce final : public Schedule {
 public:
  CpuReduce(Topology topology, Across across);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  [[nodiscard]] Step Show(uint32_t first, uint32_t i, uint32_t k) const;
  [[nodiscard]] Step ReduceShard(uint32_t first, uint32_t local, uint32_t i) const;
  [[nodiscard]] Step Share(uint32_t first, uint32_t local, uint32_t i, uint32_t k) const;

  const Topology topology_;
  const AcrossStage across_;
};

}  // namespace horoacc::schedule
