#pragma once
// Links over TCP of all ranks of a small job: each rank knows where every other one listens.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/check.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/control/tcp_links.h"
#include "transport/data/tcp/tcp_data_links.h"
#include "transport/net/interfaces.h"

namespace horoacc::testing {

/// By rank.
inline Result<std::vector<SocketAddress>> AllAddresses(Bootstrap& bootstrap,
                                                       const SocketAddress& own,
                                                       int64_t deadline_ns) {
  HA_ASSIGN(const std::vector<std::string> texts, bootstrap.AllGather(own.ToString(), deadline_ns));
  std::vector<SocketAddress> addresses;
  for (const std::string& text : texts) {
    HA_ASSIGN(const std::vector<SocketAddress> found, ResolveAddress(text));
    addresses.push_back(found.front());
  }
  return addresses;
}

/// Every rank dials the higher ones at once, unless `options` says whom.
inline Result<std::unique_ptr<ControlLinks>> ConnectAll(Bootstrap& bootstrap,
                                                        TcpLinksOptions options) {
  options.rank = bootstrap.rank();
  options.size = bootstrap.size();
  HA_ASSIGN(Fd listener, ListenForControl("127.0.0.1:1", options.size));
  HA_ASSIGN(const SocketAddress own, LocalAddress(listener.get()));
  HA_ASSIGN(const auto addresses, AllAddresses(bootstrap, own, options.deadline_ns));
  options.address_of = [addresses](int rank) { return std::optional(addresses[rank]); };
  if (options.dials.empty() && options.awaits.empty()) {
    for (int rank = 0; rank < options.size; ++rank) {
      if (rank != options.rank)
        (rank < options.rank ? options.awaits : options.dials).push_back(rank);
    }
  }
  return ConnectTcpLinks(std::move(listener), options);
}

/// `host`: this rank's, as in AgreeOnInterfaces.
inline Result<std::unique_ptr<TcpDataLinks>> ListenOnAll(Bootstrap& bootstrap,
                                                         TcpDataOptions options,
                                                         const std::string& host = "one",
                                                         const std::string& interfaces = "") {
  const int64_t deadline_ns = NowNs() + 60 * kSecond;
  HA_ASSIGN(const AgreedInterfaces agreed,
            AgreeOnInterfaces(bootstrap, host, 0, interfaces, deadline_ns));
  options.rank = bootstrap.rank();
  options.address = agreed.own;
  options.host_of = agreed.host_of;
  auto addresses = std::make_shared<std::vector<SocketAddress>>();
  options.address_of = [addresses](int rank) { return std::optional((*addresses)[rank]); };
  HA_ASSIGN(auto links, ListenForData(std::move(options)));
  HA_ASSIGN(*addresses, AllAddresses(bootstrap, links->address(), deadline_ns));
  return links;
}

}  // namespace horoacc::testing
