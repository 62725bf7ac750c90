#pragma once
// Allreduce in two dimensions ("2-D", Hybrid+): reduce-scatter inside each host, one allreduce a
// shard across hosts, all-gather inside.
#include "schedule/generate/across.h"

namespace horoacc::schedule {

/// With H hosts a host sends 2S(H-1)/H into the network by rings, whatever its number of ranks;
/// the flat ring sends up to 2S. Inside a host it is rings as well.
///
/// Lanes: 0 reduce-scatter, then those across, last all-gather; windows follow each other through
/// them, so that the network and the host's own links are busy at the same time.
class Hierarchical final : public Schedule {
 public:
  Hierarchical(Topology topology, Across across);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  const Topology topology_;
  const AcrossStage across_;
};

}  // namespace horoacc::schedule
