#include "transport/net/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>

#include "transport/bootstrap/gather_wire.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

int64_t SpeedOf(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int64_t megabits = 0;
  return file >> megabits && megabits > 0 ? megabits : 0;
}

std::string TextOf(int family, const void* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(family, bytes, text, sizeof(text));
  return text;
}

/// Fills in the address and its network; false for an address of no use.
bool Describe(const sockaddr* address, const sockaddr* mask, Interface& result) {
  if (address->sa_family == AF_INET) {
    in_addr own = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    result.address = TextOf(AF_INET, &own);
    own.s_addr &= reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr;
    result.network = TextOf(AF_INET, &own);
    return true;
  }
  if (address->sa_family != AF_INET6) return false;
  in6_addr own = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&own)) return false;
  result.address = "[" + TextOf(AF_INET6, &own) + "]";
  const in6_addr& bits = reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr;
  for (size_t index = 0; index < sizeof(own.s6_addr); ++index) {
    own.s6_addr[index] &= bits.s6_addr[index];
  }
  result.network = TextOf(AF_INET6, &own);
  return true;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    const size_t first = part.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    parts.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
  }
  return parts;
}

Error NoInterface(const InterfaceOffer& offer, const std::string& why) {
  std::string names;
  for (const Interface& each : offer.interfaces) {
    names += (names.empty() ? "" : ", ") + each.name + " (" + each.address + ")";
  }
  const std::string host = offer.host.substr(0, offer.host.find('#'));
  return MakeError(ErrorKind::kConfig,
                   "host " + host + " has no network interface " + why + "; it has " + names);
}

/// The interfaces of one host that `wanted` names, in its order, each name once.
std::vector<Interface> Named(const InterfaceOffer& offer, const std::vector<std::string>& wanted) {
  std::vector<Interface> found;
  for (const std::string& name : wanted) {
    const auto match = std::ranges::find(offer.interfaces, name, &Interface::name);
    if (match != offer.interfaces.end()) found.push_back(*match);
  }
  return found;
}

/// One host's best interface, given the hosts of each address and of each network.
const Interface* Best(const InterfaceOffer& offer,
                      std::map<std::string, std::set<std::string>>& hosts_of_address,
                      std::map<std::string, std::set<std::string>>& hosts_of_network) {
  const Interface* best = nullptr;
  std::tuple<size_t, int64_t> most;
  for (const Interface& each : offer.interfaces) {
    if (each.loopback || hosts_of_address[each.address].size() > 1) continue;
    const std::tuple worth(hosts_of_network[each.network].size(), each.megabits);
    if (best == nullptr || worth > most) {
      best = &each;
      most = worth;
    }
  }
  return best;
}

}  // namespace

std::string HostName() {
  utsname names{};
  return ::uname(&names) == 0 ? names.nodename : "localhost";
}

Result<std::vector<Interface>> ListInterfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return SystemError("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_netmask == nullptr) continue;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_RUNNING) == 0) continue;
    Interface interface;
    interface.name = each->ifa_name;
    interface.loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    if (!Describe(each->ifa_addr, each->ifa_netmask, interface)) continue;
    interface.megabits = SpeedOf(interface.name);
    found.push_back(std::move(interface));
  }
  return found;
}

std::string WayTo(const SocketAddress& peer) {
  const auto local = AddressTowards(peer);
  if (!local.ok()) return "over no network interface of this host";
  // "10.0.0.2:0" without its port.
  const std::string text = local.value().ToString();
  const std::string address = text.substr(0, text.rfind(':'));
  const auto interfaces = ListInterfaces();
  std::string name = "an interface of this host";
  if (interfaces.ok()) {
    for (const Interface& each : interfaces.value()) {
      if (each.address == address) name = each.name;
    }
  }
  return "over " + name + " (" + address + ")";
}

std::string NetworkIdentity() {
  std::string kernel;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> kernel;
  char space[64] = "";
  const ssize_t length = ::readlink("/proc/self/ns/net", space, sizeof(space) - 1);
  return HostName() + "#" + kernel +
         std::string(space, length > 0 ? static_cast<size_t>(length) : 0);
}

std::string PackOffer(const InterfaceOffer& offer) {
  std::ostringstream text;
  text << offer.host << '\n' << offer.local_rank << '\n';
  for (const Interface& each : offer.interfaces) {
    text << each.name << ' ' << each.address << ' ' << each.network << ' ' << each.megabits << ' '
         << each.loopback << '\n';
  }
  return text.str();
}

Result<InterfaceOffer> UnpackOffer(const std::string& text) {
  std::istringstream stream(text);
  InterfaceOffer offer;
  if (!std::getline(stream, offer.host) || !(stream >> offer.local_rank)) {
    return MakeError(ErrorKind::kSystem, "a rank's list of network interfaces is broken");
  }
  Interface each;
  while (stream >> each.name >> each.address >> each.network >> each.megabits >> each.loopback) {
    offer.interfaces.push_back(each);
  }
  return offer;
}

Result<std::vector<Interface>> ChooseInterfaces(std::span<const InterfaceOffer> offers,
                                                const std::string& wanted) {
  const std::vector<std::string> names = Split(wanted, ',');
  std::set<std::string> hosts;
  std::map<std::string, std::set<std::string>> hosts_of_address;
  std::map<std::string, std::set<std::string>> hosts_of_network;
  for (const InterfaceOffer& offer : offers) {
    hosts.insert(offer.host);
    for (const Interface& each : offer.interfaces) {
      hosts_of_address[each.address].insert(offer.host);
      hosts_of_network[each.network].insert(offer.host);
    }
  }
  std::vector<Interface> chosen;
  for (const InterfaceOffer& offer : offers) {
    if (!names.empty()) {
      const std::vector<Interface> own = Named(offer, names);
      if (own.empty()) return NoInterface(offer, "named in '" + wanted + "'");
      chosen.push_back(own[static_cast<size_t>(offer.local_rank) % own.size()]);
    } else if (hosts.size() == 1) {
      const auto loopback = std::ranges::find(offer.interfaces, true, &Interface::loopback);
      if (loopback == offer.interfaces.end()) return NoInterface(offer, "of its own (loopback)");
      chosen.push_back(*loopback);
    } else {
      const Interface* best = Best(offer, hosts_of_address, hosts_of_network);
      if (best == nullptr) return NoInterface(offer, "that leads to the other hosts");
      chosen.push_back(*best);
    }
  }
  return chosen;
}

Result<AgreedInterfaces> AgreeOnInterfaces(Bootstrap& bootstrap, const std::string& host,
                                           int local_rank, const std::string& wanted,
                                           int64_t deadline_ns) {
  auto interfaces = ListInterfaces();
  Result<std::string> own = std::string();
  if (interfaces.ok()) {
    own = PackOffer(
        {host.empty() ? NetworkIdentity() : host, local_rank, std::move(interfaces).value()});
  } else {
    own = interfaces.error();
  }
  const auto choose =
      [&](const std::vector<std::string>& texts) -> Result<std::vector<std::string>> {
    std::vector<InterfaceOffer> offers;
    std::vector<int> host_of;
    std::map<std::string, int> hosts;
    for (const std::string& text : texts) {
      HA_ASSIGN(InterfaceOffer offer, UnpackOffer(text));
      host_of.push_back(hosts.emplace(offer.host, static_cast<int>(hosts.size())).first->second);
      offers.push_back(std::move(offer));
    }
    HA_ASSIGN(const std::vector<Interface> chosen, ChooseInterfaces(offers, wanted));
    std::vector<std::string> answers;
    for (const Interface& each : chosen)
      answers.push_back(PackTable({each.address, chosen[0].address, PackRuns(host_of)}));
    return answers;
  };
  HA_ASSIGN(const std::string answer,
            bootstrap.Exchange(own, " cannot list its network interfaces", choose, deadline_ns));
  HA_ASSIGN(std::vector<std::string> parts, UnpackTable(BytesOf(answer), 3));
  for (const std::string& address : {parts[0], parts[1]}) {
    if (!NumericAddress(address + ":1").ok())
      return MakeError(ErrorKind::kSystem, "rank 0 sent damaged addresses", 0);
  }
  HA_ASSIGN(std::vector<int> host_of, UnpackRuns(parts[2], bootstrap.size()));
  return AgreedInterfaces{std::move(parts[0]), std::move(parts[1]), std::move(host_of)};
}

}  // namespace horoacc
