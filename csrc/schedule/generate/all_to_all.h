#pragma once
// Every rank has a message for every other one: chunk d of its input is for rank d, and chunk s of
// its output came from rank s.
#include "schedule/generate/stage.h"
#include "schedule/topology.h"

namespace horoacc::schedule {

/// P-1 messages a rank, to one peer after the other from the next rank on, so that not all ranks
/// send to one at once. Lanes: 0 sends, 1 receives.
class DirectAllToAll final : public Schedule {
 public:
  explicit DirectAllToAll(uint32_t ranks);
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;
};

/// With rail aggregation (NCCL's PXN, 2.12): the messages of a host's ranks for one remote rank go
/// through the local rank on that rank's rail, as one message. Between two hosts of L ranks L²
/// messages become L, none of them changes rails, and the bytes in the network stay the same.
///
/// Lanes: 0 hands messages to the relays, then to the ranks of its own host; 1 relays; 2 receives.
/// A relay keeps the part of local rank i for rank d in chunk d·L + i of its scratch.
class RailAllToAll final : public Schedule {
 public:
  explicit RailAllToAll(Topology topology);
  [[nodiscard]] uint32_t scratch(uint32_t rank) const override;
  [[nodiscard]] Part kept(uint32_t rank, uint32_t chunk) const override;
  [[nodiscard]] uint32_t steps(uint32_t rank, uint32_t lane) const override;
  [[nodiscard]] Step step(uint32_t rank, uint32_t lane, uint32_t k) const override;

 private:
  struct Place {
    uint32_t host, first, local, i;
  };
  [[nodiscard]] Place PlaceOf(uint32_t rank) const;
  /// How many ranks of host `other` local rank i relays to.
  [[nodiscard]] uint32_t RelayedTo(const Place& place, uint32_t other) const;
  /// The k-th remote rank, host after host behind this one, that local rank i relays to
  /// (`relayed`), or that another rank does.
  [[nodiscard]] uint32_t Remote(const Place& place, bool relayed, uint32_t k) const;
  [[nodiscard]] uint32_t RemoteCount(const Place& place, bool relayed) const;
  [[nodiscard]] Step HandOver(const Place& place, uint32_t k) const;
  [[nodiscard]] Step Relay(const Place& place, uint32_t k) const;
  [[nodiscard]] Step Receive(const Place& place, uint32_t k) const;

  const Topology topology_;
};

}  // namespace horoacc::schedule
