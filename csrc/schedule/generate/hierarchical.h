#pragma once
// The stage between hosts, and the allreduce in two dimensions ("2-D", Hybrid+): reduce-scatter
// inside each host, one allreduce a shard across hosts, all-gather inside.
#include "schedule/generate/stage.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

enum class Across { kRing, kDoubleTree };

/// Every shard is reduced over the ranks that own it, one a host. Such a set of ranks is a rail:
/// the same place on every host, and with it the same network interface.
///
/// There are as many shards as the smallest host has ranks, so that every shard has a rail that
/// reaches all hosts; on a larger host some ranks own no shard.
class AcrossStage {
 public:
  /// Its lanes and channels are numbered from `first_lane` on.
  AcrossStage(const Topology& topology, Across across, uint32_t first_lane)
      : topology_(topology), across_(across), first_lane_(first_lane) {}

  [[nodiscard]] uint32_t lanes() const {
    if (topology_.hosts() == 1) return 0;
    return across_ == Across::kRing ? 1 : 4;
  }
  /// Chunks of a shard.
  [[nodiscard]] uint32_t parts() const {
    if (topology_.hosts() == 1) return 1;
    return across_ == Across::kRing ? topology_.hosts() : 2;
  }
  [[nodiscard]] uint32_t shards() const { return topology_.fewest(); }

  /// Steps of a rank that owns a shard.
  [[nodiscard]] uint32_t steps() const {
    return across_ == Across::kRing ? 2 * topology_.hosts() - 1 : 1;
  }
  /// `lane` counts within the stage. The input is in `operand.own` once the lanes of the mask
  /// `after` have ended.
  [[nodiscard]] Step step(uint32_t host, uint32_t shard, uint32_t lane, uint32_t k,
                          const Operand& operand, uint32_t after) const;

 private:
  const Topology& topology_;
  const Across across_;
  const uint32_t first_lane_;
};

/// With H hosts a host sends 2S(H-1)/H into the network by rings, whatever its number of ranks;
/// the flat ring sends up to 2S. Inside a host it uses rings as well.
///
/// Lanes: 0 reduce-scatter, then those between hosts, last all-gather; windows follow each other
/// through them, so that the network and the host's own links are busy at the same time.
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
