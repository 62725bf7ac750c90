#include "transport/control/tcp_links.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/data/tcp/stream_tuning.h"
#include "transport/net/admission.h"
#include "transport/net/frames.h"
#include "transport/net/interfaces.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr uint32_t kControl = 1;  ///< the only kind of frame on these links
constexpr uint64_t kLongestMessage = 256ULL << 20;
/// Bytes kept for a peer that does not read.
constexpr size_t kLongestBacklog = 512ULL << 20;
/// The doorbell's mark in the epoll set, where ranks have their number.
constexpr uint32_t kDoorbell = UINT32_MAX;
constexpr int64_t kLookAfterHosts = 250 * kMillisecond;
constexpr int64_t kRedial = 20 * kMillisecond;

void BoundSendBuffer(int fd, int bytes) {
  if (bytes > 0) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

Result<Fd> ListenTowards(const std::string& rendezvous, int backlog) {
  HA_ASSIGN(const std::vector<SocketAddress> addresses, ResolveAddress(rendezvous));
  HA_ASSIGN(const SocketAddress local, AddressTowards(addresses.front()));
  return Listen(local, backlog);
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
                        kUnauthenticatedPeers + wanted_.size(), kHandshakeTimeoutNs, options_.log,
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
      for (Admitted& admitted : outcome.admitted) Seat(std::move(admitted));
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

  // A peer's refusal is kept: it says more than that the peer no longer answers.
  void Again(int peer, Error error) {
    const bool answered = error.kind == ErrorKind::kConfig;
    if (answered || !reasons_[peer] || reasons_[peer]->kind != ErrorKind::kConfig) {
      reasons_[peer] = std::move(error);
    }
    redial_ns_[peer] = NowNs() + kRedial;
  }

  void Seat(Admitted admitted) {
    const int peer = admitted.peer_rank;
    if (admitted.dialed >= 0 && admitted.dialed != peer) {
      Again(admitted.dialed, MakeError(ErrorKind::kConfig,
                                       "rank " + std::to_string(peer) + " answers at its address"));
      return;
    }
    // Only lower ranks dial. A second connection is from another process with this rank, unless the
    // first one is closed: then its dialer gave it up and dialed again.
    if (admitted.dialed < 0 && (peer < 0 || peer >= rank_ || !wanted_[peer])) return;
    if (links_[peer] && !HungUp(links_[peer])) return;
    BoundSendBuffer(admitted.fd.get(), options_.send_buffer);
    links_[peer] = std::move(admitted.fd);
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
  std::vector<int64_t> redial_ns_;             ///< by rank: when to dial; kDialing: a dial runs
  std::vector<std::optional<Error>> reasons_;  ///< by rank: why the last dial failed
};

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
            ExchangeAddresses(bootstrap, listener, " cannot listen for control links",
                              options.deadline_ns));
  Mesh mesh(bootstrap, options);
  return mesh.Connect(std::move(listener).value(), addresses);
}

std::string LostLink(int peer, const std::string& why) {
  return "lost the control link to rank " + std::to_string(peer) + ": " + why;
}

struct Link {
  explicit Link(uint64_t epoch) : reader(epoch, kLongestMessage), writer(epoch) {}

  Fd fd;
  FrameReader reader;
  FrameWriter writer;
  bool wants_to_write = false;  ///< registered for EPOLLOUT
  bool send_failed = false;     ///< the peer's earlier messages may still be read
  bool lost = false;            ///< Receive reports it, or has reported it
  bool asked = false;           ///< bytes were sent that may not have been acknowledged
  HostSilence silence;
};

/// A message, or the end of its source's link.
struct Arrival {
  ControlMessage message;
  std::optional<Error> lost;
};

class TcpControlLinks final : public ControlLinks {
 public:
  TcpControlLinks(int size, uint64_t epoch, int64_t host_timeout_ns)
      : host_timeout_ns_(host_timeout_ns) {
    for (int peer = 0; peer < size; ++peer) links_.emplace_back(epoch);
  }
  ~TcpControlLinks() override;

  /// Takes over the connections, by rank.
  Status Open(std::vector<Fd> connections);

  Status Send(int peer, std::span<const std::byte> bytes) override;
  void Hold() override { holding_ = true; }
  void Flush() override;
  Result<std::optional<ControlMessage>> Receive() override;
  [[nodiscard]] bool HasUnsent() override {
    return std::ranges::any_of(
        links_, [](const Link& link) { return link.fd && link.writer.pending() > 0; });
  }
  [[nodiscard]] int WaitFd() const override { return epoll_.get(); }
  void LeaveToParent() override {
    for (const Link& link : links_) link.fd.LeaveToParent();
  }
  [[nodiscard]] const char* kind() const override { return "tcp"; }
  [[nodiscard]] uint64_t messages_sent() const override { return messages_sent_; }
  [[nodiscard]] uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  Status LookAtNetwork();
  void LookAfterHosts();
  void ReadFrom(int peer);
  void WriteTo(int peer);
  void Lose(int peer, const std::string& why);
  void Watch(int peer, bool writing);
  void RingIf(bool more);

  const int64_t host_timeout_ns_;
  int64_t look_after_hosts_ns_ = 0;
  std::vector<Link> links_;  ///< by rank
  Fd epoll_;
  Fd doorbell_;  ///< eventfd in the epoll set: readable while arrivals_ is not empty
  bool ringing_ = false;
  bool holding_ = false;
  std::vector<int> held_;  ///< peers with messages that Flush sends
  std::vector<int> deaf_;  ///< peers to whom sending has just failed
  std::deque<Arrival> arrivals_;
  uint64_t messages_sent_ = 0;
  uint64_t bytes_sent_ = 0;
};

/// Reads first: closing with unread bytes would reset the connection and lose the last messages.
TcpControlLinks::~TcpControlLinks() {
  for (Link& link : links_) {
    if (!link.fd) continue;
    if (!link.send_failed) [[maybe_unused]]
      const auto flushed = link.writer.FlushTo(link.fd.get());
    ::shutdown(link.fd.get(), SHUT_WR);
    [[maybe_unused]] const auto drained = link.reader.FillFrom(link.fd.get());
  }
}

Status TcpControlLinks::Open(std::vector<Fd> connections) {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError("epoll_create1");
  doorbell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell_) return SystemError("eventfd");
  const auto watch = [this](const Fd& fd, uint32_t mark) {
    epoll_event event{.events = EPOLLIN, .data = {.u32 = mark}};
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0;
  };
  if (!watch(doorbell_, kDoorbell)) return SystemError("epoll_ctl");
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    links_[peer].fd = std::move(connections[peer]);
    if (links_[peer].fd) {
      // A process that does not read must not be waited for without end, even if its host
      // acknowledges.
      LimitSilence(links_[peer].fd.get(), host_timeout_ns_);
      LimitUnanswered(links_[peer].fd.get(), 10 * host_timeout_ns_);
    }
    if (links_[peer].fd && !watch(links_[peer].fd, static_cast<uint32_t>(peer))) {
      return SystemError("epoll_ctl");
    }
  }
  return {};
}

void TcpControlLinks::Watch(int peer, bool writing) {
  Link& link = links_[peer];
  if (!link.fd || link.wants_to_write == writing) return;
  link.wants_to_write = writing;
  const uint32_t events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
  epoll_event event{.events = events, .data = {.u32 = static_cast<uint32_t>(peer)}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.fd.get(), &event);
}

void TcpControlLinks::Lose(int peer, const std::string& why) {
  links_[peer].fd = Fd();
  links_[peer].writer = FrameWriter(0);
  links_[peer].lost = true;
  Error error = MakeError(ErrorKind::kPeerLost, LostLink(peer, why), peer);
  arrivals_.push_back({{}, std::move(error)});
}

void TcpControlLinks::WriteTo(int peer) {
  Link& link = links_[peer];
  const auto flushed = link.writer.FlushTo(link.fd.get());
  if (!flushed.ok()) {
    link.send_failed = true;
    link.writer = FrameWriter(0);
    deaf_.push_back(peer);
    RingIf(true);
  }
  Watch(peer, flushed.ok() && !flushed.value());
}

void TcpControlLinks::ReadFrom(int peer) {
  Link& link = links_[peer];
  const auto open = link.reader.FillFrom(link.fd.get());
  while (true) {
    auto frame = link.reader.Next();
    if (!frame.ok()) return Lose(peer, frame.error().message);
    if (!frame.value()) break;
    arrivals_.push_back({{peer, std::move(frame.value()->bytes)}, std::nullopt});
  }
  if (!open.ok()) return Lose(peer, open.error().message);
  if (!open.value()) {
    Lose(peer, link.reader.partial() ? "it closed in the middle of a message" : "it closed");
  }
}

Status TcpControlLinks::LookAtNetwork() {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  if (count < 0 && errno != EINTR) return SystemError("epoll_wait");
  for (int index = 0; index < count; ++index) {
    if (events[index].data.u32 == kDoorbell) continue;
    const int peer = static_cast<int>(events[index].data.u32);
    if ((events[index].events & EPOLLOUT) != 0) WriteTo(peer);
    if ((events[index].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) ReadFrom(peer);
  }
  // The peer's last messages say more than that it is gone.
  for (const int peer : std::exchange(deaf_, {})) {
    if (links_[peer].fd) ReadFrom(peer);
    if (links_[peer].fd) Lose(peer, "it takes no more messages");
  }
  return {};
}

// A stopped process is not lost: its host still acknowledges.
void TcpControlLinks::LookAfterHosts() {
  const int64_t now = NowNs();
  if (host_timeout_ns_ == 0 || now < look_after_hosts_ns_) return;
  look_after_hosts_ns_ = now + kLookAfterHosts;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    Link& link = links_[peer];
    if (!link.fd || !link.asked) continue;
    const StreamHealth health = HealthOf(link.fd.get());
    const int64_t silent = link.silence.Look(health, now);
    link.asked = health.owes || link.writer.pending() > 0;
    if (silent >= host_timeout_ns_) {
      Lose(static_cast<int>(peer), SilenceText(silent, host_timeout_ns_));
    }
  }
}

void TcpControlLinks::RingIf(bool more) {
  if (more == ringing_) return;
  ringing_ = more;
  uint64_t count = 1;
  [[maybe_unused]] const ssize_t done = more ? ::write(doorbell_.get(), &count, sizeof(count))
                                             : ::read(doorbell_.get(), &count, sizeof(count));
}

Status TcpControlLinks::Send(int peer, std::span<const std::byte> bytes) {
  if (peer < 0 || peer >= static_cast<int>(links_.size())) {
    return MakeError(ErrorKind::kInvalid, "no control link to rank " + std::to_string(peer));
  }
  if (bytes.size() > kLongestMessage) {
    return MakeError(ErrorKind::kInvalid,
                     "a control message of " + std::to_string(bytes.size()) + " bytes is too long");
  }
  Link& link = links_[peer];
  const std::string name = "rank " + std::to_string(peer);
  if (!link.fd && !link.lost) {
    return MakeError(ErrorKind::kPeerLost, "no control link to " + name, peer);
  }
  if (link.writer.pending() > kLongestBacklog) {
    return MakeError(ErrorKind::kPeerLost, name + " does not read its control messages", peer);
  }
  if (link.lost || link.send_failed) return {};  // Receive reports the reason
  const bool idle = link.writer.pending() == 0;
  link.writer.Queue(kControl, bytes);
  link.asked = true;
  // With a backlog the socket is full; epoll tells when it takes more.
  if (idle && holding_) held_.push_back(peer);
  if (idle && !holding_) WriteTo(peer);
  ++messages_sent_;
  bytes_sent_ += bytes.size();
  return {};
}

void TcpControlLinks::Flush() {
  holding_ = false;
  for (const int peer : held_) {
    if (links_[peer].fd && !links_[peer].send_failed) WriteTo(peer);
  }
  held_.clear();
}

Result<std::optional<ControlMessage>> TcpControlLinks::Receive() {
  if (arrivals_.empty()) HA_TRY(LookAtNetwork());
  if (arrivals_.empty()) LookAfterHosts();
  if (arrivals_.empty()) {
    RingIf(false);
    return std::optional<ControlMessage>();
  }
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  RingIf(!arrivals_.empty() || !deaf_.empty());
  if (arrival.lost) return *std::move(arrival.lost);
  return std::optional<ControlMessage>(std::move(arrival.message));
}

}  // namespace

Result<std::unique_ptr<ControlLinks>> ConnectTcpLinks(Bootstrap& bootstrap,
                                                      const TcpLinksOptions& options) {
  HA_ASSIGN(std::vector<Fd> connections, ConnectMesh(bootstrap, options));
  auto links =
      std::make_unique<TcpControlLinks>(bootstrap.size(), options.epoch, options.host_timeout_ns);
  HA_TRY(links->Open(std::move(connections)));
  return std::unique_ptr<ControlLinks>(std::move(links));
}

}  // namespace horoacc
