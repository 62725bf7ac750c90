#include "transport/bootstrap/tcp_mesh.h"

#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/net/admission.h"
#include "transport/net/interfaces.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kPatience = 10 * kSecond;
constexpr int64_t kRedial = 20 * kMillisecond;
constexpr size_t kStrangers = 64;

void BoundSendBuffer(int fd, int bytes) {
  if (bytes > 0) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

Result<Fd> ListenTowards(const std::string& rendezvous, int backlog) {
  HA_ASSIGN(const std::vector<SocketAddress> addresses,
            ResolveAddress(rendezvous.empty() ? "127.0.0.1:1" : rendezvous));
  HA_ASSIGN(const SocketAddress local, AddressTowards(addresses.front()));
  return Listen(local, backlog);
}

/// Everybody's listening address, by rank, resolved. A rank that cannot listen says so to all.
Result<std::vector<SocketAddress>> ExchangeAddresses(Bootstrap& bootstrap,
                                                     const Result<Fd>& listener,
                                                     int64_t deadline_ns) {
  constexpr char kFailure = '!';
  std::string blob = kFailure + (listener.ok() ? "" : listener.error().message);
  if (listener.ok()) {
    const auto address = LocalAddress(listener.value().get());
    blob = address.ok() ? address.value().ToString() : kFailure + address.error().message;
  }
  HA_ASSIGN(const std::vector<std::string> blobs, bootstrap.AllGather(blob, deadline_ns));
  std::vector<SocketAddress> addresses;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    if (blobs[rank].starts_with(kFailure)) {
      return MakeError(ErrorKind::kConfig,
                       "rank " + std::to_string(rank) +
                           " cannot listen for control links: " + blobs[rank].substr(1),
                       rank);
    }
    HA_ASSIGN(const std::vector<SocketAddress> found, ResolveAddress(blobs[rank]));
    addresses.push_back(found.front());
  }
  return addresses;
}

/// The state of connecting one rank to its peers.
class Mesh {
 public:
  Mesh(const Bootstrap& bootstrap, const TcpLinksOptions& options)
      : rank_(bootstrap.rank()),
        options_(options),
        links_(bootstrap.size()),
        wanted_(bootstrap.size(), options.peers.empty()),
        redial_ns_(bootstrap.size(), 0),
        reasons_(bootstrap.size()) {
    for (const int peer : options.peers) wanted_[peer] = true;
    wanted_[rank_] = false;
  }

  Result<std::vector<Fd>> Connect(Fd listener, const std::vector<SocketAddress>& addresses) {
    const int size = static_cast<int>(wanted_.size());
    Admission admission({options_.secret, LinkPurpose::kControl, options_.epoch, rank_, size},
                        kStrangers + wanted_.size(), kPatience, options_.log,
                        options_.cancellation);
    HA_TRY(admission.Listen(std::move(listener)));
    while (true) {
      std::vector<bool> there(wanted_.size());
      for (int peer = 0; peer < size; ++peer) there[peer] = !wanted_[peer] || links_[peer];
      const auto missing = std::ranges::find(there, false);
      if (missing == there.end()) return std::move(links_);
      if (NowNs() >= options_.deadline_ns) {
        const int first = static_cast<int>(missing - there.begin());
        return TooLate(there, first, addresses[first], admission);
      }
      HA_ASSIGN(const int64_t until, DialDue(addresses, admission));
      HA_ASSIGN(Admission::Outcome outcome, admission.Step(until));
      for (const FailedDial& failed : outcome.failed) Again(failed.tag, failed.error);
      for (Admitted& guest : outcome.admitted) Seat(std::move(guest));
    }
  }

 private:
  static constexpr int64_t kDialing = INT64_MAX;

  /// Starts the dials that are due; returns when to look again.
  Result<int64_t> DialDue(const std::vector<SocketAddress>& addresses, Admission& admission) {
    int64_t until = options_.deadline_ns;
    for (int peer = rank_ + 1; peer < static_cast<int>(wanted_.size()); ++peer) {
      if (!wanted_[peer] || links_[peer]) continue;
      if (redial_ns_[peer] <= NowNs()) {
        auto connecting = StartDial(addresses[peer]);
        if (connecting.ok()) {
          redial_ns_[peer] = kDialing;
          HA_TRY(admission.Dial(std::move(connecting).value(), peer));
        } else {
          Again(peer, connecting.error());
        }
      }
      until = std::min(until, redial_ns_[peer]);
    }
    return until;
  }

  // What somebody said who answered tells more than that nobody answers any more.
  void Again(int peer, Error error) {
    const bool answered = error.kind == ErrorKind::kConfig;
    if (answered || !reasons_[peer] || reasons_[peer]->kind != ErrorKind::kConfig) {
      reasons_[peer] = std::move(error);
    }
    redial_ns_[peer] = NowNs() + kRedial;
  }

  void Seat(Admitted guest) {
    const int peer = guest.peer_rank;
    if (guest.dialed >= 0 && guest.dialed != peer) {
      Again(guest.dialed, MakeError(ErrorKind::kConfig,
                                    "rank " + std::to_string(peer) + " answers at its address"));
      return;
    }
    // From outside only lower ranks come. A second connection is another process with this rank,
    // unless the first one is dead: then its dialer gave it up and came again.
    if (guest.dialed < 0 && (peer < 0 || peer >= rank_ || !wanted_[peer])) return;
    if (links_[peer] && !HungUp(links_[peer])) return;
    BoundSendBuffer(guest.fd.get(), options_.send_buffer);
    links_[peer] = std::move(guest.fd);
  }

  Error TooLate(const std::vector<bool>& there, int first, const SocketAddress& address,
                const Admission& admission) const {
    std::string text = "no control link to rank(s) " + NamesOfMissing(there) + " in time";
    if (reasons_[first]) {
      text += "; rank " + std::to_string(first) + " at " + address.ToString() + " " +
              WayTo(address) + ": " + reasons_[first]->message;
    }
    if (const std::string why = admission.TurnedAway(); !why.empty()) text += " (" + why + ")";
    return MakeError(ErrorKind::kTimeout, text, first);
  }

  int rank_;
  const TcpLinksOptions& options_;
  std::vector<Fd> links_;  ///< by rank
  std::vector<bool> wanted_;
  std::vector<int64_t> redial_ns_;             ///< by rank: when to dial; kDialing: it is under way
  std::vector<std::optional<Error>> reasons_;  ///< by rank: why the last dial failed
};

}  // namespace

Result<std::vector<Fd>> ConnectMesh(Bootstrap& bootstrap, const TcpLinksOptions& options) {
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "control links need the job's secret");
  }
  const int size = bootstrap.size();
  for (const int peer : options.peers) {
    if (peer < 0 || peer >= size) {
      return MakeError(ErrorKind::kInvalid, "there is no rank " + std::to_string(peer));
    }
  }
  auto listener = ListenTowards(options.rendezvous, std::max(1024, size));
  HA_ASSIGN(const std::vector<SocketAddress> addresses,
            ExchangeAddresses(bootstrap, listener, options.deadline_ns));
  Mesh mesh(bootstrap, options);
  return mesh.Connect(std::move(listener).value(), addresses);
}

}  // namespace horoacc
