#pragma once
// The hosts of a job, and the links between them.
#include <optional>
#include <string>
#include <vector>

#include "api/horoacc.h"
#include "base/log.h"
#include "base/settings.h"
#include "runtime/engine/engine.h"
#include "transport/wake/cancellation.h"

namespace horoacc {

/// A rank's host, and its placement.
struct HostPlace {
  std::string label;  ///< ranks with different labels do not try to share memory
  Placement placement;
};

/// The ranks of each host, as setting 'simulated_hosts', which is not empty, divides a job of
/// `size` ranks. kConfig if it cannot.
Result<std::vector<int>> SimulatedHosts(const Settings& settings, int size);

/// The launcher's placement, unless setting 'simulated_hosts' divides this host.
Result<HostPlace> PlaceOnHost(const Settings& settings, const ha_placement& placement);

struct HostLinkOptions {
  std::string rendezvous;  ///< as the launcher gave it, or empty
  std::string secret;
  uint64_t epoch = 0;
  int64_t deadline_ns = 0;
  Log log{0, LogLevel::kWarning, false};
  Cancellation cancellation;
};

/// By rank: its host's lowest rank, `lowest` for this one, and that host's name. All ranks call it.
struct HostsOfJob {
  std::vector<int> lowest;
  std::vector<std::string> names;
};
Result<HostsOfJob> HostsOfRanks(Bootstrap& bootstrap, int lowest, const std::string& name,
                                int64_t deadline_ns);

/// Every host's leader learns where the leaders next to it in the tree listen; rank 0's host learns
/// where all ranks do, and answers the others' questions while the job runs. All ranks call it.
Status ExchangeAddresses(Bootstrap& bootstrap, const Result<RankAddresses>& own,
                         const MultiHostParts& multi_host, int64_t deadline_ns);

/// Connects ranks that do not all share memory: fills in `links` and `multi_host`. All ranks call
/// it, after ShareHost. Does nothing if all ranks of the job share memory.
Status ConnectHosts(const Settings& settings, const HostLinkOptions& options, EngineParts& parts);

}  // namespace horoacc
