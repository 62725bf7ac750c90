#include "transport/bootstrap/tcp_rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/bootstrap/tcp_gather.h"
#include "transport/net/admission.h"
#include "transport/net/interfaces.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kPatience = 10 * kSecond;
constexpr int64_t kRedial = 50 * kMillisecond;

Result<Fd> ListenForRanks(const TcpOptions& options) {
  // Ranks must get through although unauthenticated peers stand in front of them.
  const int backlog = std::max(1024, options.size);
  HA_ASSIGN(const std::vector<SocketAddress> addresses, ResolveAddress(options.address));
  Error last;
  for (SocketAddress address : addresses) {
    int code = 0;
    auto listener = Listen(address, backlog, &code);
    if (!listener.ok() && code == EADDRNOTAVAIL) {
      // The name stands for this machine but is translated on the way (containers): any interface.
      const uint16_t port = address.port();
      const int family = address.family();
      address.storage = {};
      address.storage.ss_family = static_cast<sa_family_t>(family);
      address.set_port(port);
      listener = Listen(address, backlog);
    }
    if (listener.ok()) return listener;
    last = std::move(listener.error());
  }
  last.kind = ErrorKind::kConfig;
  return std::move(last).Within("rank 0 cannot listen at " + options.address);
}

Result<Fd> TakeListener(const TcpOptions& options) {
  if (options.listen_fd < 0) return ListenForRanks(options);
  Fd listener(options.listen_fd);
  HA_TRY(SetNonBlocking(listener.get()));
  return listener;
}

/// Dials until rank 0 has proved the secret.
Result<Fd> DialRoot(const TcpOptions& options) {
  HandshakeTerms terms{options.secret, LinkPurpose::kRendezvous, options.epoch, options.rank,
                       options.size};
  Admission admission(std::move(terms), 0, kPatience, options.log, options.cancellation);
  std::string reason = "no time to try";
  std::string way;
  for (size_t attempt = 0; NowNs() < options.deadline_ns; ++attempt) {
    // Resolved every time: the name of a host that is still starting may not exist yet.
    auto addresses = ResolveAddress(options.address);
    if (!addresses.ok()) {
      if (options.address.find(':') == std::string::npos) return std::move(addresses.error());
      reason = addresses.error().message;
    } else {
      const auto& all = addresses.value();
      const SocketAddress& address = all[attempt % all.size()];
      way = " " + WayTo(address);
      auto connecting = StartDial(address);
      if (!connecting.ok()) {
        reason = connecting.error().message;
      } else {
        HA_TRY(admission.Dial(std::move(connecting).value(), 0));
        while (NowNs() < options.deadline_ns) {
          HA_ASSIGN(Admission::Outcome outcome, admission.Step(options.deadline_ns));
          if (!outcome.admitted.empty() && outcome.admitted[0].peer_rank == 0) {
            return std::move(outcome.admitted[0].fd);
          }
          if (!outcome.admitted.empty()) {
            reason = "another rank than 0 answers there";
            break;
          }
          if (!outcome.failed.empty()) {
            reason = outcome.failed[0].error.message;
            break;
          }
        }
      }
    }
    const int64_t again = std::min(NowNs() + kRedial, options.deadline_ns);
    HA_TRY(PollUntil({}, again, options.cancellation));
  }
  return MakeError(ErrorKind::kTimeout,
                   "rank " + std::to_string(options.rank) + " cannot reach rank 0 at " +
                       options.address + way + ": " + reason,
                   0);
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> ConnectTcp(const TcpOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return MakeError(ErrorKind::kConfig, "there is no rank " + std::to_string(options.rank) +
                                             " among " + std::to_string(options.size));
  }
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "the rendezvous needs the job's secret");
  }
  if (options.rank == 0) {
    HA_ASSIGN(Fd listener, TakeListener(options));
    return GatherRanks(options, std::move(listener));
  }
  HA_ASSIGN(Fd root, DialRoot(options));
  return JoinRanks(options, std::move(root));
}

}  // namespace horoacc
