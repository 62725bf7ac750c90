#include "transport/tcp_links.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "transport/admission.h"
#include "transport/frames.h"
#include "transport/gather_wire.h"
#include "transport/socket.h"

namespace horoacc {
namespace {

constexpr uint32_t kControl = 1;  ///< the only kind of frame on these links
constexpr uint64_t kLongestMessage = 256ULL << 20;
/// What a peer that does not read may cost.
constexpr size_t kLongestBacklog = 512ULL << 20;
constexpr int64_t kPatience = 10 * kSecond;
constexpr int64_t kRedial = 20 * kMillisecond;
constexpr size_t kStrangers = 64;
/// The bell's mark in the epoll set, where ranks have their number.
constexpr uint32_t kBell = UINT32_MAX;

struct Link {
  explicit Link(uint64_t epoch) : reader(epoch, kLongestMessage), writer(epoch) {}

  Fd fd;
  FrameReader reader;
  FrameWriter writer;
  bool wants_to_write = false;  ///< registered for EPOLLOUT
  bool send_failed = false;     ///< what it sent before may still be read
};

/// A message that has come, or the end of its source's link.
struct Arrival {
  ControlMessage message;
  std::optional<Error> lost;
};

class TcpControlLinks final : public ControlLinks {
 public:
  TcpControlLinks(int size, uint64_t epoch) {
    for (int peer = 0; peer < size; ++peer) links_.emplace_back(epoch);
  }
  ~TcpControlLinks() override;

  Status Open();
  Status Add(int peer, Fd fd);
  [[nodiscard]] bool Connected(int peer) const { return static_cast<bool>(links_[peer].fd); }
  [[nodiscard]] bool Stale(int peer) const { return HungUp(links_[peer].fd); }

  Status Send(int peer, std::span<const std::byte> bytes) override;
  Result<std::optional<ControlMessage>> Receive() override;
  [[nodiscard]] int WaitFd() const override { return epoll_.get(); }
  [[nodiscard]] const char* kind() const override { return "tcp"; }
  [[nodiscard]] uint64_t messages_sent() const override { return messages_sent_; }
  [[nodiscard]] uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  Status LookAtNetwork();
  void ReadFrom(int peer);
  void WriteTo(int peer);
  void Lose(int peer, const std::string& why);
  void Watch(int peer, bool writing);
  void RingIf(bool more);

  std::vector<Link> links_;  ///< by rank
  Fd epoll_;
  Fd bell_;  ///< in the epoll set; readable while arrivals_ is not empty but epoll might be quiet
  bool ringing_ = false;
  std::deque<Arrival> arrivals_;
  uint64_t messages_sent_ = 0;
  uint64_t bytes_sent_ = 0;
};

/// Last words reach their peer: closing with unread bytes would reset the connection under them.
TcpControlLinks::~TcpControlLinks() {
  for (Link& link : links_) {
    if (!link.fd) continue;
    if (!link.send_failed) [[maybe_unused]]
      const auto flushed = link.writer.FlushTo(link.fd.get());
    ::shutdown(link.fd.get(), SHUT_WR);
    [[maybe_unused]] const auto drained = link.reader.FillFrom(link.fd.get());
  }
}

Status TcpControlLinks::Open() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError("epoll_create1");
  bell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_) return SystemError("eventfd");
  epoll_event event{.events = EPOLLIN, .data = {.u32 = kBell}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell_.get(), &event) != 0) {
    return SystemError("epoll_ctl");
  }
  return {};
}

Status TcpControlLinks::Add(int peer, Fd fd) {
  Link& link = links_[peer];
  link.fd = std::move(fd);  // closes one that was there, and with it its place in the epoll set
  epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(peer)}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link.fd.get(), &event) != 0) {
    return SystemError("epoll_ctl");
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
  Error error =
      MakeError(ErrorKind::kPeerLost,
                "lost the control link to rank " + std::to_string(peer) + ": " + why, peer);
  arrivals_.push_back({{}, std::move(error)});
}

void TcpControlLinks::WriteTo(int peer) {
  Link& link = links_[peer];
  const auto flushed = link.writer.FlushTo(link.fd.get());
  if (!flushed.ok()) {
    link.send_failed = true;
    link.writer = FrameWriter(0);
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
    if (events[index].data.u32 == kBell) continue;
    const int peer = static_cast<int>(events[index].data.u32);
    if ((events[index].events & EPOLLOUT) != 0) WriteTo(peer);
    if ((events[index].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) ReadFrom(peer);
  }
  return {};
}

void TcpControlLinks::RingIf(bool more) {
  if (more == ringing_) return;
  ringing_ = more;
  uint64_t count = 1;
  [[maybe_unused]] const ssize_t done = more ? ::write(bell_.get(), &count, sizeof(count))
                                             : ::read(bell_.get(), &count, sizeof(count));
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
  if (!link.fd) return MakeError(ErrorKind::kPeerLost, "no control link to " + name, peer);
  if (link.writer.pending() > kLongestBacklog) {
    return MakeError(ErrorKind::kPeerLost, name + " does not read its control messages", peer);
  }
  const bool idle = link.writer.pending() == 0;
  if (!link.send_failed) {
    link.writer.Queue(kControl, bytes);
    // Behind a backlog the socket is known to be full; epoll says when it is not.
    if (idle) WriteTo(peer);
  }
  if (link.send_failed) {
    return MakeError(ErrorKind::kPeerLost, name + " does not take control messages any more", peer);
  }
  ++messages_sent_;
  bytes_sent_ += bytes.size();
  return {};
}

Result<std::optional<ControlMessage>> TcpControlLinks::Receive() {
  if (arrivals_.empty()) HA_TRY(LookAtNetwork());
  if (arrivals_.empty()) return std::optional<ControlMessage>();
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  RingIf(!arrivals_.empty());
  if (arrival.lost) return *std::move(arrival.lost);
  return std::optional<ControlMessage>(std::move(arrival.message));
}

// ---------------------------------------------------------------------------------------------

void BoundSendBuffer(int fd, int bytes) {
  if (bytes > 0) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

Result<Fd> ListenTowards(const std::string& rendezvous, int backlog) {
  HA_ASSIGN(const std::vector<SocketAddress> addresses, ResolveAddress(rendezvous));
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
  Mesh(const Bootstrap& bootstrap, const TcpLinksOptions& options, TcpControlLinks& links)
      : rank_(bootstrap.rank()),
        options_(options),
        links_(links),
        wanted_(bootstrap.size(), options.peers.empty()),
        redial_ns_(bootstrap.size(), 0),
        reasons_(bootstrap.size()) {
    for (const int peer : options.peers) wanted_[peer] = true;
    wanted_[rank_] = false;
  }

  Status Connect(Fd listener, const std::vector<SocketAddress>& addresses) {
    const int size = static_cast<int>(wanted_.size());
    Admission admission({options_.secret, LinkPurpose::kControl, options_.epoch, rank_, size},
                        kStrangers + wanted_.size(), kPatience);
    admission.Listen(std::move(listener));
    while (true) {
      std::vector<bool> there(wanted_.size());
      for (int peer = 0; peer < size; ++peer)
        there[peer] = !wanted_[peer] || links_.Connected(peer);
      const auto missing = std::ranges::find(there, false);
      if (missing == there.end()) return {};
      if (NowNs() >= options_.deadline_ns) {
        return TooLate(there, static_cast<int>(missing - there.begin()), admission);
      }
      HA_ASSIGN(const int64_t until, DialDue(addresses, admission));
      HA_ASSIGN(Admission::Outcome outcome, admission.Step(until));
      for (const FailedDial& failed : outcome.failed) Again(failed.tag, failed.reason);
      for (Admitted& guest : outcome.admitted) HA_TRY(Seat(std::move(guest)));
    }
  }

 private:
  static constexpr int64_t kDialing = INT64_MAX;

  /// Starts the dials that are due; returns when to look again.
  Result<int64_t> DialDue(const std::vector<SocketAddress>& addresses, Admission& admission) {
    int64_t until = options_.deadline_ns;
    for (int peer = rank_ + 1; peer < static_cast<int>(wanted_.size()); ++peer) {
      if (!wanted_[peer] || links_.Connected(peer)) continue;
      if (redial_ns_[peer] <= NowNs()) {
        auto connecting = StartDial(addresses[peer]);
        if (connecting.ok()) {
          redial_ns_[peer] = kDialing;
          HA_TRY(admission.Dial(std::move(connecting).value(), peer));
        } else {
          Again(peer, connecting.error().message);
        }
      }
      until = std::min(until, redial_ns_[peer]);
    }
    return until;
  }

  void Again(int peer, const std::string& reason) {
    reasons_[peer] = reason;
    redial_ns_[peer] = NowNs() + kRedial;
  }

  Status Seat(Admitted guest) {
    const int peer = guest.peer_rank;
    if (guest.dialed >= 0 && guest.dialed != peer) {
      Again(guest.dialed, "rank " + std::to_string(peer) + " answers at its address");
      return {};
    }
    // From outside only lower ranks come. A second connection is another process with this rank,
    // unless the first one is dead: then its dialer gave it up and came again.
    if (guest.dialed < 0 && (peer < 0 || peer >= rank_ || !wanted_[peer])) return {};
    if (links_.Connected(peer) && !links_.Stale(peer)) return {};
    BoundSendBuffer(guest.fd.get(), options_.send_buffer);
    return links_.Add(peer, std::move(guest.fd));
  }

  Error TooLate(const std::vector<bool>& there, int first, const Admission& admission) const {
    std::string text = "no control link to rank(s) " + NamesOfMissing(there) + " in time";
    if (!reasons_[first].empty()) {
      text += "; rank " + std::to_string(first) + ": " + reasons_[first];
    }
    if (const std::string why = admission.TurnedAway(); !why.empty()) text += " (" + why + ")";
    return MakeError(ErrorKind::kTimeout, text, first);
  }

  int rank_;
  const TcpLinksOptions& options_;
  TcpControlLinks& links_;
  std::vector<bool> wanted_;
  std::vector<int64_t> redial_ns_;    ///< by rank: when to dial; kDialing: it is under way
  std::vector<std::string> reasons_;  ///< by rank: why the last dial failed
};

}  // namespace

Result<std::unique_ptr<ControlLinks>> ConnectTcpLinks(Bootstrap& bootstrap,
                                                      const TcpLinksOptions& options) {
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "control links need the job's secret");
  }
  const int size = bootstrap.size();
  for (const int peer : options.peers) {
    if (peer < 0 || peer >= size) {
      return MakeError(ErrorKind::kInvalid, "there is no rank " + std::to_string(peer));
    }
  }
  auto links = std::make_unique<TcpControlLinks>(size, options.epoch);
  HA_TRY(links->Open());
  auto listener = ListenTowards(options.rendezvous, size + static_cast<int>(kStrangers));
  HA_ASSIGN(const std::vector<SocketAddress> addresses,
            ExchangeAddresses(bootstrap, listener, options.deadline_ns));
  Mesh mesh(bootstrap, options, *links);
  HA_TRY(mesh.Connect(std::move(listener).value(), addresses));
  return std::unique_ptr<ControlLinks>(std::move(links));
}

}  // namespace horoacc
