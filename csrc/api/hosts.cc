#include "api/hosts.h"

#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "negotiate/multi_host/multi_host_tree.h"
#include "transport/bootstrap/agreed_sealing.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/control/sealed_links.h"
#include "transport/control/tcp_links.h"
#include "transport/data/tagged/tagged_links.h"
#include "transport/data/tcp/tcp_data_links.h"
#include "transport/mpi/mpi_links.h"
#include "transport/net/interfaces.h"

namespace horoacc {
namespace {

// -1 if it is no number.
int NumberIn(std::string_view text) {
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The first rank that cannot be on a host with that lowest rank, or -1.
int WrongHost(const std::vector<int>& lowest) {
  for (int rank = 0; rank < std::ssize(lowest); ++rank) {
    const int first = lowest[rank];
    if (first < 0 || first > rank || lowest[first] != first) return rank;
  }
  return -1;
}

int64_t HostTimeout(const Settings& settings) { return FromSeconds(settings.host_timeout_seconds); }

// Where a rank of the job listens, as far as this host knows.
std::function<std::optional<SocketAddress>(int)> AddressOf(
    std::shared_ptr<const RankDirectory> directory, SocketAddress RankAddresses::* which) {
  return [directory = std::move(directory), which](int rank) -> std::optional<SocketAddress> {
    const std::optional<RankAddresses> known = directory->Find(rank);
    if (!known || ((*known).*which).length == 0) return std::nullopt;
    return (*known).*which;
  };
}

Result<std::unique_ptr<TcpDataLinks>> TcpLinksAcross(
    const Settings& settings, const HostLinkOptions& options, const EngineParts& parts,
    const AgreedInterfaces& interfaces, const Sealing& sealing, MultiHostParts& multi_host) {
  TcpDataOptions tcp;
  tcp.secret = options.secret;
  tcp.epoch = options.epoch;
  tcp.sealing = sealing;
  tcp.log = options.log;
  tcp.rank = parts.bootstrap->rank();
  tcp.address = interfaces.own;
  tcp.host_of = interfaces.host_of;
  tcp.address_of = AddressOf(multi_host.directory, &RankAddresses::data);
  tcp.streams = settings.tcp_streams;
  tcp.socket_buffer = settings.socket_buffer_bytes;
  tcp.checksums = settings.tcp_checksums;
  tcp.host_timeout_ns = HostTimeout(settings);
  multi_host.sockets = tcp.counters;
  return ListenForData(std::move(tcp));
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
  // Machines, and containers of one, may have equal names.
  place.label = NetworkIdentity();
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

Result<HostsOfJob> HostsOfRanks(Bootstrap& bootstrap, int lowest, const std::string& name,
                                int64_t deadline_ns) {
  const auto runs = [](const std::vector<std::string>& all) -> Result<std::vector<std::string>> {
    std::vector<int> hosts;
    std::vector<std::string> names;
    for (const std::string& each : all) {
      hosts.push_back(NumberIn(each));
      names.push_back(each.substr(each.find('\n') + 1));
    }
    if (const int wrong = WrongHost(hosts); wrong >= 0)
      return MakeError(ErrorKind::kSystem, "its host is damaged", wrong);
    return std::vector<std::string>(all.size(), PackTable({PackRuns(hosts), PackNames(names)}));
  };
  HA_ASSIGN(const std::string packed,
            bootstrap.Exchange(std::to_string(lowest) + '\n' + name, "", runs, deadline_ns));
  HA_ASSIGN(const std::vector<std::string> parts, UnpackTable(BytesOf(packed), 2));
  HostsOfJob hosts;
  HA_ASSIGN(hosts.lowest, UnpackRuns(parts[0], bootstrap.size()));
  if (WrongHost(hosts.lowest) >= 0)
    return MakeError(ErrorKind::kSystem, "rank 0 sent damaged hosts", 0);
  HA_ASSIGN(hosts.names, UnpackNames(parts[1], bootstrap.size()));
  if (std::ssize(hosts.names) != bootstrap.size())
    return MakeError(ErrorKind::kSystem, "rank 0 sent a list of names of another length", 0);
  return hosts;
}

Status ExchangeAddresses(Bootstrap& bootstrap, const Result<RankAddresses>& own,
                         const MultiHostParts& multi_host, int64_t deadline_ns) {
  const RankDirectory& directory = *multi_host.directory;
  const HostOrder order(multi_host.host_of);
  const auto answer = [&](const std::vector<std::string>& all) -> Result<std::vector<std::string>> {
    std::vector<std::string> answers(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const std::optional<RankAddresses> addresses = RankAddresses::Unpack(all[rank]);
      if (!addresses) {
        return MakeError(ErrorKind::kSystem, "its addresses are damaged", static_cast<int>(rank));
      }
      directory.Put(static_cast<int>(rank), *addresses);
      const TreeNeighbours next = NeighboursOf(multi_host.host_of, static_cast<uint32_t>(rank));
      std::vector<uint32_t> ranks = next.above();
      for (const uint32_t below : next.below()) ranks.push_back(below);
      // The root, and those that follow it if hosts leave at once.
      for (uint32_t place = 0; place < std::min(order.hosts(), kRootsKnown); ++place)
        ranks.push_back(order.members(place).front());
      for (const uint32_t each : ranks) {
        answers[rank] += std::to_string(each) + '\n' + all[each] + '\0';
      }
    }
    return answers;
  };
  const Result<std::string> packed =
      own.ok() ? Result<std::string>(own.value().Pack()) : Result<std::string>(own.error());
  HA_ASSIGN(const std::string told,
            bootstrap.Exchange(packed, " cannot listen for links", answer, deadline_ns));
  std::istringstream entries(told);
  for (std::string entry; std::getline(entries, entry, '\0');) {
    const size_t line = entry.find('\n');
    const auto addresses = RankAddresses::Unpack(entry.substr(line + 1));
    const int rank = NumberIn(entry);
    if (line == std::string::npos || !addresses || rank < 0 || rank >= bootstrap.size())
      return MakeError(ErrorKind::kSystem, "rank 0 sent damaged addresses", 0);
    directory.Put(rank, *addresses);
  }
  if (own.ok()) directory.Put(bootstrap.rank(), own.value());
  return {};
}

Status ConnectHosts(const Settings& settings, const HostLinkOptions& options, EngineParts& parts) {
  Bootstrap& bootstrap = *parts.bootstrap;
  MultiHostParts multi_host;
  HA_ASSIGN(HostsOfJob hosts,
            HostsOfRanks(bootstrap, parts.share.ranks[0], HostName(), options.deadline_ns));
  multi_host.host_of = std::move(hosts.lowest);
  multi_host.host_names = std::move(hosts.names);
  if (std::ssize(parts.share.ranks) == bootstrap.size()) return {};
  if (settings.control == ControlKind::kSegment) {
    return MakeError(ErrorKind::kConfig,
                     "setting 'control' can be 'shm' only if all ranks share one host's memory");
  }
  multi_host.Place(parts.share);
  const bool over_mpi = settings.control == ControlKind::kMpi;
  const bool data_over_tcp = settings.transport_plugin.empty() && !over_mpi;
  if (settings.encrypt && !data_over_tcp) {
    return MakeError(ErrorKind::kConfig,
                     "setting 'encrypt' is for HoroACC's own connections: data over MPI or a "
                     "transport plug-in cannot be encrypted");
  }
  Sealing sealing;
  if (!over_mpi) {
    HA_ASSIGN(sealing, AgreeOnSealing(settings, bootstrap, options.log, options.deadline_ns));
  }
  std::string rendezvous = options.rendezvous;
  AgreedInterfaces interfaces;
  // Without a rendezvous (MPI) ranks listen on the interface that joins the hosts.
  if (data_over_tcp || (!over_mpi && rendezvous.empty())) {
    HA_ASSIGN(interfaces, AgreeOnInterfaces(bootstrap, "", parts.share.local_rank,
                                            settings.network_interfaces, options.deadline_ns));
    if (rendezvous.empty()) rendezvous = interfaces.rank0 + ":1";
  }
  Result<RankAddresses> own = RankAddresses{};
  Fd listener;
  if (!over_mpi) {
    Result<Fd> control = ListenForControl(rendezvous, bootstrap.size());
    const Result<SocketAddress> address =
        control.ok() ? LocalAddress(control.value().get()) : control.error();
    if (address.ok())
      own.value().control = address.value();
    else
      own = address.error();
    if (control.ok()) listener = std::move(control).value();
  }
  if (!settings.transport_plugin.empty()) {
    HA_ASSIGN(multi_host.across, LoadDataLinks(bootstrap, settings.transport_plugin, options.epoch,
                                               options.deadline_ns));
  } else if (over_mpi) {
    multi_host.across = MakeMpiDataLinks(parts.mpi, options.epoch);
  } else {
    auto links = TcpLinksAcross(settings, options, parts, interfaces, sealing, multi_host);
    if (!links.ok())
      own = links.error();
    else if (own.ok())
      own.value().data = links.value()->address();
    if (links.ok()) multi_host.across = std::move(links).value();
  }
  HA_TRY(ExchangeAddresses(bootstrap, own, multi_host, options.deadline_ns));
  if (over_mpi) {
    parts.links = MakeMpiControlLinks(parts.mpi);
    if (settings.link_mac != LinkMac::kNone)
      parts.links =
          WithSeals(std::move(parts.links), bootstrap.rank(), options.secret, options.epoch);
  } else {
    const TreeNeighbours next =
        NeighboursOf(multi_host.host_of, static_cast<uint32_t>(bootstrap.rank()));
    TcpLinksOptions tcp;
    tcp.rank = bootstrap.rank();
    tcp.size = bootstrap.size();
    tcp.secret = options.secret;
    tcp.epoch = options.epoch;
    tcp.sealing = sealing;
    tcp.log = options.log;
    tcp.deadline_ns = options.deadline_ns;
    tcp.cancellation = options.cancellation;
    tcp.host_timeout_ns = HostTimeout(settings);
    for (const uint32_t rank : next.below()) tcp.dials.push_back(static_cast<int>(rank));
    for (const uint32_t rank : next.above()) tcp.awaits.push_back(static_cast<int>(rank));
    tcp.address_of = AddressOf(multi_host.directory, &RankAddresses::control);
    tcp.has_left = [directory = multi_host.directory](int rank) {
      return directory->HasDeparted({Departure::kJob, rank});
    };
    HA_ASSIGN(parts.links, ConnectTcpLinks(std::move(listener), tcp));
  }
  parts.multi_host = std::move(multi_host);
  return {};
}

}  // namespace horoacc
