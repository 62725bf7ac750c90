#pragma once
// The capability exchange of a process set whose GPUs reduce across hosts, as hosts see it.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "execute/cuda/host/gpu_group.h"
#include "transport/data/data_links.h"

namespace horoacc::cuda {

/// On the lowest rank of each host. Each tells the set's lowest rank, the root, how far the ranks
/// of its host are; the root tells all of them how far those of all hosts are. So all ranks of the
/// set learn the same, and a rank that cannot go on is known before the others have got as far.
class HostsExchange {
 public:
  struct Place {
    DataLinks* links = nullptr;
    CollectiveId collective{};
    int rank = 0;            ///< this one, in the job
    std::vector<int> ranks;  ///< the lowest of each host; the root is the first
  };
  HostsExchange(GpuGroup& group, Place place) : group_(group), place_(std::move(place)) {}

  /// Sends and takes what there is. An error is one of the links.
  [[nodiscard]] Result<bool> Advance();
  /// Nothing is on its way any more. To be asked once the GPU group has agreed.
  [[nodiscard]] bool done() const;

 private:
  /// Another host's lowest rank: the root, or all others for the root.
  struct Host {
    std::unique_ptr<SendLink> out;
    std::unique_ptr<ReceiveLink> in;
    std::optional<HostNews> told{}, heard{};  ///< the latest
  };
  [[nodiscard]] Status Open();
  /// Unless that is what it was told before, or its link is full.
  [[nodiscard]] Result<bool> Tell(Host& host, const HostNews& news);
  [[nodiscard]] Result<bool> Hear(Host& host) const;
  /// The root's: takes a host's news into those of all hosts.
  void Add(const HostNews& news);

  GpuGroup& group_;
  const Place place_;
  std::vector<Host> hosts_;
  bool all_told_ = false;  ///< the latest has been sent to all
  HostNews all_;           ///< the root's, of all hosts
};

}  // namespace horoacc::cuda
