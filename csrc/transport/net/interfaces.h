#pragma once
// Which of a host's network interfaces carries the links, and where the ranks listen.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/net/socket.h"

namespace horoacc {

/// An address of an interface that is up, with an IPv4 or IPv6 address of global or private use.
struct Interface {
  std::string name;
  std::string address;   ///< without port; IPv6 in brackets
  std::string network;   ///< the address cut to its prefix: equal for neighbours
  int64_t megabits = 0;  ///< as the driver says; 0: unknown
  bool loopback = false;
  friend bool operator==(const Interface&, const Interface&) = default;
};

/// This host's name.
[[nodiscard]] std::string HostName();

/// This host's interfaces, in the kernel's order.
Result<std::vector<Interface>> ListInterfaces();

/// How this host would reach an address: "over eth0 (10.0.0.2)", for errors. Sends nothing.
[[nodiscard]] std::string WayTo(const SocketAddress& peer);

/// Equal for processes that see the same interfaces, and for no others: the host's name, then '#',
/// the running kernel and the network namespace. (Names alone may be equal on different machines.)
[[nodiscard]] std::string NetworkIdentity();

/// One rank's interfaces, for the other ranks.
struct InterfaceOffer {
  std::string host;  ///< NetworkIdentity
  int local_rank = 0;
  std::vector<Interface> interfaces;
};

[[nodiscard]] std::string PackOffer(const InterfaceOffer& offer);
Result<InterfaceOffer> UnpackOffer(const std::string& text);

/// The interface of each rank; all ranks choose alike from the same offers.
///
/// `wanted` are names, separated by commas; ranks of a host use those of their host in turn, by
/// local rank. Without names: loopback if there is one host, else of the interfaces whose network
/// reaches most hosts the fastest, the first of equals. An address that several hosts have (a
/// container bridge's) is never chosen. kConfig names a host without a usable interface.
Result<std::vector<Interface>> ChooseInterfaces(std::span<const InterfaceOffer> offers,
                                                const std::string& wanted);

struct AgreedInterfaces {
  std::string own;           ///< this rank's address, without port
  std::string rank0;         ///< rank 0's
  std::vector<int> host_of;  ///< by rank: its host, as NetworkIdentity tells them apart
};

/// Rank 0 chooses for the offers of all ranks (ChooseInterfaces). All ranks call it. `host`: this
/// rank's, or empty for NetworkIdentity().
Result<AgreedInterfaces> AgreeOnInterfaces(Bootstrap& bootstrap, const std::string& host,
                                           int local_rank, const std::string& wanted,
                                           int64_t deadline_ns);

}  // namespace horoacc
