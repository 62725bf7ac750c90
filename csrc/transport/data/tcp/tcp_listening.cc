#include "transport/data/tcp/tcp_listening.h"

#include <utility>

#include "transport/net/interfaces.h"

namespace horoacc {
namespace {

constexpr int kBacklog = 1024;

/// Gathers a text of every rank; one that starts with '!' is a rank's failure, and everybody's.
Result<std::vector<std::string>> Tell(Bootstrap& bootstrap, const Result<std::string>& text,
                                      int64_t deadline_ns) {
  HA_ASSIGN(
      std::vector<std::string> texts,
      bootstrap.AllGather(text.ok() ? text.value() : "!" + text.error().message, deadline_ns));
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    if (!texts[rank].starts_with('!')) continue;
    return MakeError(
        ErrorKind::kConfig,
        "rank " + std::to_string(rank) + " cannot listen for data links: " + texts[rank].substr(1),
        rank);
  }
  return texts;
}

Result<std::string> Offer(const TcpDataOptions& options) {
  HA_ASSIGN(std::vector<Interface> interfaces, ListInterfaces());
  const std::string host = options.host.empty() ? NetworkIdentity() : options.host;
  return PackOffer({host, options.local_rank, std::move(interfaces)});
}

Result<Fd> ListenAt(const std::string& address) {
  HA_ASSIGN(const std::vector<SocketAddress> found, ResolveAddress(address + ":0"));
  return Listen(found.front(), kBacklog);
}

Result<std::string> AddressOf(const Result<Fd>& listener) {
  if (!listener.ok()) return listener.error();
  HA_ASSIGN(const SocketAddress address, LocalAddress(listener.value().get()));
  return address.ToString();
}

}  // namespace

Result<ListeningRanks> ListenOnChosen(Bootstrap& bootstrap, const TcpDataOptions& options) {
  HA_ASSIGN(const std::vector<std::string> offered,
            Tell(bootstrap, Offer(options), options.deadline_ns));
  std::vector<InterfaceOffer> offers;
  for (const std::string& text : offered) {
    HA_ASSIGN(InterfaceOffer offer, UnpackOffer(text));
    offers.push_back(std::move(offer));
  }
  // Everybody chooses for everybody, and so comes to the same end.
  HA_ASSIGN(const std::vector<Interface> chosen, ChooseInterfaces(offers, options.interfaces));
  auto listener = ListenAt(chosen[bootstrap.rank()].address);
  HA_ASSIGN(const std::vector<std::string> addresses,
            Tell(bootstrap, AddressOf(listener), options.deadline_ns));
  ListeningRanks ranks{.listener = std::move(listener).value(), .places = {}};
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    HA_ASSIGN(const std::vector<SocketAddress> found, ResolveAddress(addresses[rank]));
    ranks.places.push_back({found.front(), offers[rank].host});
  }
  return ranks;
}

}  // namespace horoacc
