#include "api/hosts.h"

#include <charconv>
#include <sstream>
#include <string_view>
#include <vector>

#include "transport/control/tcp_links.h"
#include "transport/data/shm/shm_data.h"
#include "transport/data/tagged/tagged_links.h"
#include "transport/data/tcp/tcp_data_links.h"
#include "transport/mpi/mpi_links.h"
#include "transport/net/interfaces.h"

namespace horoacc {
namespace {

// 0 if it is no number.
int NumberIn(std::string_view text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

int64_t HostTimeout(const Settings& settings) { return FromSeconds(settings.host_timeout_seconds); }

// Without a rendezvous (MPI) ranks listen on the interface that joins the hosts.
Result<std::string> AddressOfRankZero(const Settings& settings, Bootstrap& bootstrap,
                                      int local_rank, int64_t deadline_ns) {
  HA_ASSIGN(const AgreedInterfaces agreed,
            AgreeOnInterfaces(bootstrap, "", local_rank, settings.network_interfaces, deadline_ns));
  return agreed.interfaces[0].address + ":1";
}

Result<std::unique_ptr<DataLinks>> LinksAcross(const Settings& settings,
                                               const HostLinkOptions& options,
                                               const EngineParts& parts,
                                               MultiHostParts& multi_host) {
  if (!settings.transport_plugin.empty()) {
    return LoadDataLinks(*parts.bootstrap, settings.transport_plugin, options.epoch,
                         options.deadline_ns);
  }
  if (settings.control == ControlKind::kMpi) return MakeMpiDataLinks(parts.mpi, options.epoch);
  TcpDataOptions tcp;
  tcp.secret = options.secret;
  tcp.epoch = options.epoch;
  tcp.log = options.log;
  tcp.deadline_ns = options.deadline_ns;
  tcp.local_rank = parts.share.local_rank;
  tcp.interfaces = settings.network_interfaces;
  tcp.streams = settings.tcp_streams;
  tcp.socket_buffer = settings.socket_buffer_bytes;
  tcp.checksums = settings.tcp_checksums;
  tcp.host_timeout_ns = HostTimeout(settings);
  multi_host.sockets = tcp.counters;
  HA_ASSIGN(std::unique_ptr<TcpDataLinks> links, ListenForData(*parts.bootstrap, tcp));
  return std::unique_ptr<DataLinks>(std::move(links));
}

}  // namespace

Result<std::vector<int>> SimulatedHosts(const Settings& settings, int size) {
  if (settings.simulated_hosts == "each") return std::vector<int>(size, 1);
  std::vector<int> parts;
  int ranks = 0;
  std::istringstream text(settings.simulated_hosts);
  for (std::string part; std::getline(text, part, '+'); ranks += parts.back())
    parts.push_back(NumberIn(part));
  const bool positive = std::ranges::all_of(parts, [](int part) { return part > 0; });
  if (!positive || ranks != size) {
    return MakeError(ErrorKind::kConfig,
                     "setting 'simulated_hosts' cannot be '" + settings.simulated_hosts +
                         "' in a job of " + std::to_string(size) +
                         " ranks: it is 'each', or one number of ranks for each host, as '2+1' in "
                         "a job of 3 ranks");
  }
  return parts;
}

Result<HostPlace> PlaceOnHost(const Settings& settings, const ha_placement& given) {
  HostPlace place;
  place.label = HostName();
  place.placement = {given.rank,       given.size,       given.local_rank,
                     given.local_size, given.cross_rank, given.cross_size};
  if (settings.simulated_hosts.empty() || given.size == 1) return place;
  HA_ASSIGN(const std::vector<int> parts, SimulatedHosts(settings, given.size));
  int first = 0;
  int host = 0;
  for (; given.rank >= first + parts[host]; ++host) first += parts[host];
  place.label += "/" + std::to_string(host);
  place.placement.local_rank = given.rank - first;
  place.placement.local_size = parts[host];
  place.placement.cross_rank = place.placement.cross_size = 0;
  for (int other = 0; other < static_cast<int>(parts.size()); ++other) {
    if (parts[other] <= place.placement.local_rank) continue;
    ++place.placement.cross_size;
    if (other < host) ++place.placement.cross_rank;
  }
  return place;
}

Status ConnectHosts(const Settings& settings, const HostLinkOptions& options, EngineParts& parts) {
  Bootstrap& bootstrap = *parts.bootstrap;
  HA_ASSIGN(const std::vector<std::string> lowest,
            bootstrap.AllGather(std::to_string(parts.share.ranks[0]), options.deadline_ns));
  MultiHostParts multi_host;
  for (const std::string& rank : lowest) multi_host.host_of.push_back(NumberIn(rank));
  if (parts.share.ranks.size() == lowest.size()) return {};
  if (settings.control == ControlKind::kSegment) {
    return MakeError(ErrorKind::kConfig,
                     "setting 'control' can be 'shm' only if all ranks share one host's memory");
  }
  if (settings.control == ControlKind::kMpi) {
    parts.links = MakeMpiControlLinks(parts.mpi);
  } else {
    TcpLinksOptions tcp;
    tcp.rendezvous = options.rendezvous;
    if (tcp.rendezvous.empty()) {
      HA_ASSIGN(tcp.rendezvous, AddressOfRankZero(settings, bootstrap, parts.share.local_rank,
                                                  options.deadline_ns));
    }
    tcp.secret = options.secret;
    tcp.epoch = options.epoch;
    tcp.log = options.log;
    tcp.deadline_ns = options.deadline_ns;
    tcp.cancellation = options.cancellation;
    tcp.host_timeout_ns = HostTimeout(settings);
    HA_ASSIGN(parts.links, ConnectTcpLinks(bootstrap, tcp));
  }
  HA_ASSIGN(multi_host.across, LinksAcross(settings, options, parts, multi_host));
  multi_host.shm_offset = ControlSegment::BytesFor(static_cast<uint32_t>(parts.share.ranks.size()));
  parts.multi_host = std::move(multi_host);
  return {};
}

}  // namespace horoacc
