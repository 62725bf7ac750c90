#include "transport/control/tcp_links.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/data/tcp/stream_tuning.h"
#include "transport/net/dialing.h"
#include "transport/net/frames.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr uint32_t kControl = 1;  ///< the only kind of frame on these links
constexpr uint64_t kLongestMessage = 256ULL << 20;
/// Bytes kept for a peer that does not read.
constexpr size_t kLongestBacklog = 512ULL << 20;
// Marks in the epoll set, where connections have their rank and side.
constexpr uint32_t kDoorbell = UINT32_MAX;
constexpr uint32_t kDialing = UINT32_MAX - 1;
constexpr uint32_t kTimer = UINT32_MAX - 2;
constexpr int64_t kLookAfterHosts = 250 * kMillisecond;
constexpr int64_t kLookWhileConnecting = 20 * kMillisecond;
/// Both connections of a link end with their process: one that has ended alone for so long was cut.
constexpr int64_t kLastWords = kSecond;

void BoundSendBuffer(int fd, int bytes) {
  if (bytes > 0) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

std::string LostLink(int peer, const std::string& why) {
  return "lost the control link to rank " + std::to_string(peer) + ": " + why;
}

/// By the rank that dialed. There are two only if both ranks dialed at once.
enum Side : uint32_t { kDialed = 0, kAccepted = 1, kSides = 2 };

struct Connection {
  explicit Connection(uint64_t epoch) : reader(epoch, kLongestMessage) {}
  Fd fd;
  FrameReader reader;
};

struct Link {
  Link(uint64_t epoch, size_t tag_bytes)
      : sides{Connection(epoch), Connection(epoch)}, writer(epoch, tag_bytes) {}
  [[nodiscard]] Fd& out() { return sides[*sends_on].fd; }
  [[nodiscard]] bool open() const { return sends_on && !lost; }

  Connection sides[kSides];
  std::optional<Side> sends_on;  ///< none: not connected
  FrameWriter writer;
  bool dialed = false;
  bool has_sent = false;
  bool wants_to_write = false;  ///< registered for EPOLLOUT
  bool send_failed = false;     ///< the peer's earlier messages may still be read
  bool lost = false;            ///< Receive reports it, or has reported it
  bool asked = false;           ///< bytes were sent that may not have been acknowledged
  int64_t ends_ns = INT64_MAX;  ///< when it is lost, since one of its two connections has ended
  HostSilence silence;
};

/// A message, or the end of its source's link.
struct Arrival {
  ControlMessage message;
  std::optional<Error> lost;
};

class TcpControlLinks final : public ControlLinks {
 public:
  explicit TcpControlLinks(TcpLinksOptions options)
      : options_(std::move(options)), links_(options_.size) {}
  ~TcpControlLinks() override;

  Status Open(Fd listener);
  /// Waits for the links that are made at once.
  Status Connect();

  Status Send(int peer, std::span<const std::byte> bytes) override;
  void Hold() override { holding_ = true; }
  void Flush() override;
  Result<std::optional<ControlMessage>> Receive() override;
  [[nodiscard]] bool HasUnsent() override {
    return std::ranges::any_of(used_, [this](int peer) {
      const Link& link = *links_[peer];
      if (link.lost || link.writer.pending() == 0 || HasLeft(peer)) return false;
      return link.open() || !dialing_->Failed(peer);  // it may have left without a word to this one
    });
  }
  [[nodiscard]] std::vector<int> peers() const override {
    std::vector<int> ranks;
    std::ranges::copy_if(used_, std::back_inserter(ranks),
                         [this](int peer) { return links_[peer]->open(); });
    std::ranges::sort(ranks);
    return ranks;
  }
  [[nodiscard]] int WaitFd() const override { return epoll_.get(); }
  void LeaveToParent() override {
    dialing_->LeaveToParent();
    // Another thread of the parent may have been adding a link at the fork.
    for (const auto& link : links_) {
      if (!link) continue;
      for (const Connection& side : link->sides) side.fd.LeaveToParent();
    }
  }
  [[nodiscard]] const char* kind() const override { return "tcp"; }
  [[nodiscard]] uint64_t messages_sent() const override { return messages_sent_; }
  [[nodiscard]] uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  [[nodiscard]] Link& LinkTo(int peer) {
    if (links_[peer]) return *links_[peer];
    auto link = std::make_unique<Link>(options_.epoch, options_.sealing.tag_bytes());
    used_.push_back(peer);
    return *(links_[peer] = std::move(link));
  }
  [[nodiscard]] bool HasLeft(int peer) const {
    return options_.has_left && options_.has_left(peer);
  }
  Status LookAtNetwork();
  void Admit();
  void Seat(Admitted admitted);
  void LookAfterHosts();
  void ReadFrom(int peer, Side side);
  void WriteTo(int peer);
  void Lose(int peer, const std::string& why);
  void LoseHalved();
  void Watch(int peer, bool writing);
  void RingIf(bool more);
  void Arm();

  const TcpLinksOptions options_;
  int64_t look_after_hosts_ns_ = 0;
  std::vector<std::unique_ptr<Link>> links_;  ///< by rank; null: not used
  std::vector<int> used_;
  std::unique_ptr<Dialing> dialing_;
  bool dialing_ready_ = false;  ///< its descriptor is readable
  Fd epoll_;
  Fd doorbell_;  ///< eventfd in the epoll set: readable while arrivals_ is not empty
  Fd timer_;     ///< for dials that are due
  int64_t armed_ns_ = INT64_MAX;
  bool ringing_ = false;
  bool took_last_ = false;  ///< by the latest Receive
  bool holding_ = false;
  std::vector<int> held_;    ///< peers with messages that Flush sends
  std::vector<int> deaf_;    ///< peers to whom sending has just failed
  std::vector<int> halved_;  ///< peers of whose two connections one has ended
  std::deque<Arrival> arrivals_;
  uint64_t messages_sent_ = 0;
  uint64_t bytes_sent_ = 0;
};

/// Reads first: closing with unread bytes would reset the connection and lose the last messages.
TcpControlLinks::~TcpControlLinks() {
  for (const int peer : used_) {
    Link& link = *links_[peer];
    if (link.open() && !link.send_failed) [[maybe_unused]]
      const auto flushed = link.writer.FlushTo(link.out().get());
    for (Connection& side : link.sides) {
      if (!side.fd) continue;
      ::shutdown(side.fd.get(), SHUT_WR);
      [[maybe_unused]] const auto drained = side.reader.FillFrom(side.fd.get());
    }
  }
}

Status TcpControlLinks::Open(Fd listener) {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError("epoll_create1");
  doorbell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell_) return SystemError("eventfd");
  timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return SystemError("timerfd_create");
  Dialing::Options dialing;
  dialing.terms = {options_.secret, LinkPurpose::kControl, options_.epoch, options_.rank,
                   options_.size};
  dialing.address_of = options_.address_of;
  dialing.timeout_ns = options_.timeout_ns;
  dialing.needed = [this](int peer) { return !HasLeft(peer); };
  dialing.ranks_expected = options_.awaits.size();
  dialing.log = options_.log;
  HA_ASSIGN(dialing_, Dialing::Start(std::move(dialing), std::move(listener)));
  const auto watch = [this](int fd, uint32_t mark) {
    epoll_event event{.events = EPOLLIN, .data = {.u32 = mark}};
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!watch(doorbell_.get(), kDoorbell) || !watch(timer_.get(), kTimer) ||
      !watch(dialing_->WaitFd(), kDialing))
    return SystemError("epoll_ctl");
  return {};
}

Status TcpControlLinks::Connect() {
  std::vector<int> wanted = options_.awaits;
  for (const int peer : options_.dials) {
    LinkTo(peer).dialed = true;
    dialing_->Dial(peer, 1, true, options_.deadline_ns - NowNs() + kSecond);
    wanted.push_back(peer);
  }
  for (;;) {
    std::vector<bool> there(options_.size, true);
    for (const int peer : wanted) there[peer] = LinkTo(peer).open();
    const auto missing = std::ranges::find(there, false);
    if (missing == there.end()) return {};
    const int64_t now = NowNs();
    if (now >= options_.deadline_ns) {
      const auto first = static_cast<int>(missing - there.begin());
      return MakeError(ErrorKind::kTimeout,
                       "no control link to rank(s) " + NamesOfMissing(there) + " in time" +
                           dialing_->WhyNot(first),
                       first);
    }
    pollfd wait{epoll_.get(), POLLIN, 0};
    HA_TRY(PollUntil({&wait, 1}, std::min(options_.deadline_ns, now + kLookWhileConnecting),
                     options_.cancellation));
    HA_TRY(LookAtNetwork());
  }
}

void TcpControlLinks::Seat(Admitted admitted) {
  const int peer = admitted.peer_rank;
  Link& link = LinkTo(peer);
  const Side side = admitted.dialed >= 0 ? kDialed : kAccepted;
  Connection& connection = link.sides[side];
  // A second connection is from another process with this rank, unless the first one is closed:
  // then its dialer gave it up and dialed again.
  const bool used = link.sends_on == side && link.has_sent;
  if (link.lost || (connection.fd && (used || !HungUp(connection.fd)))) return;
  auto seal = Seal::Make(options_.sealing, admitted.keys.send, Seal::End::kSend);
  auto open = Seal::Make(options_.sealing, admitted.keys.receive, Seal::End::kReceive);
  if (!seal.ok() || !open.ok()) return Lose(peer, (seal.ok() ? open : seal).error().message);
  BoundSendBuffer(admitted.fd.get(), options_.send_buffer);
  // A process that does not read must not be waited for without end, even if its host
  // acknowledges.
  LimitSilence(admitted.fd.get(), options_.host_timeout_ns);
  LimitUnanswered(admitted.fd.get(), 10 * options_.host_timeout_ns);
  epoll_event event{.events = EPOLLIN,
                    .data = {.u32 = static_cast<uint32_t>(peer) * kSides + side}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, admitted.fd.get(), &event) != 0) return;
  connection.fd = std::move(admitted.fd);
  connection.reader = FrameReader(options_.epoch, kLongestMessage, std::move(open).value());
  if (!link.send_failed) link.ends_ns = INT64_MAX;  // its dialer gave up what has ended
  if (link.sends_on.value_or(side) != side) return;
  link.sends_on = side;
  link.writer.Use(std::move(seal).value());
  link.wants_to_write = false;
  if (link.writer.pending() > 0) WriteTo(peer);
}

void TcpControlLinks::Admit() {
  if (!std::exchange(dialing_ready_, false) && dialing_->due_ns() > NowNs()) return;
  Result<std::vector<Admitted>> all = dialing_->Step();
  if (!all.ok()) {
    const int peer = all.error().culprit;
    if (peer >= 0) return Lose(peer, all.error().message);
    arrivals_.push_back({{}, std::move(all.error())});
    return;
  }
  for (Admitted& admitted : all.value()) Seat(std::move(admitted));
}

void TcpControlLinks::Arm() {
  int64_t due = dialing_->due_ns();
  for (const int peer : halved_) due = std::min(due, links_[peer]->ends_ns);
  if (due == armed_ns_ || due == INT64_MAX) return;
  armed_ns_ = due;
  const int64_t at = std::max<int64_t>(due, 1);  // zero would turn it off
  itimerspec when = {};
  when.it_value = {at / kSecond, at % kSecond};
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void TcpControlLinks::Watch(int peer, bool writing) {
  Link& link = LinkTo(peer);
  if (!link.open() || !link.out() || link.wants_to_write == writing) return;
  link.wants_to_write = writing;
  const uint32_t events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
  epoll_event event{.events = events,
                    .data = {.u32 = static_cast<uint32_t>(peer) * kSides + *link.sends_on}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.out().get(), &event);
}

/// Receive closes the connections when it reports the loss: the peer, which then notices, must not
/// end the job with less than this rank knows.
void TcpControlLinks::Lose(int peer, const std::string& why) {
  Link& link = LinkTo(peer);
  if (link.lost) return;
  link.writer = FrameWriter(0);
  link.lost = true;
  Error error = MakeError(ErrorKind::kPeerLost, LostLink(peer, why), peer);
  arrivals_.push_back({{}, std::move(error)});
}

void TcpControlLinks::LoseHalved() {
  std::erase_if(halved_, [this, now = NowNs()](int peer) {
    if (now >= links_[peer]->ends_ns) Lose(peer, "one of its two connections was cut");
    return links_[peer]->lost || links_[peer]->ends_ns == INT64_MAX;
  });
}

void TcpControlLinks::WriteTo(int peer) {
  Link& link = LinkTo(peer);
  link.has_sent = true;
  const auto flushed = link.writer.FlushTo(link.out().get());
  if (!flushed.ok()) {
    link.send_failed = true;
    link.writer = FrameWriter(0);
    deaf_.push_back(peer);
    RingIf(true);
  }
  Watch(peer, flushed.ok() && !flushed.value());
}

void TcpControlLinks::ReadFrom(int peer, Side side) {
  Connection& from = LinkTo(peer).sides[side];
  if (!from.fd) return;
  const auto open = from.reader.FillFrom(from.fd.get());
  while (true) {
    auto frame = from.reader.Next();
    if (!frame.ok()) return Lose(peer, frame.error().message);
    if (!frame.value()) break;
    arrivals_.push_back({{peer, std::move(frame.value()->bytes)}, std::nullopt});
  }
  if (open.ok() && open.value()) return;
  // The peer's last messages may come on the other connection.
  Link& link = LinkTo(peer);
  if (link.sides[1 - side].fd) {
    from.fd = Fd();
    link.ends_ns = NowNs() + kLastWords;
    halved_.push_back(peer);
    if (link.sends_on == side) {
      link.send_failed = true;
      link.writer = FrameWriter(0);
    }
    return;
  }
  if (!open.ok()) return Lose(peer, open.error().message);
  Lose(peer, from.reader.partial() ? "it closed in the middle of a message" : "it closed");
}

Status TcpControlLinks::LookAtNetwork() {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  if (count < 0 && errno != EINTR) return SystemError("epoll_wait");
  for (int index = 0; index < count; ++index) {
    const uint32_t mark = events[index].data.u32;
    if (mark == kTimer) {
      uint64_t expirations = 0;
      [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof(expirations));
      armed_ns_ = INT64_MAX;
    }
    if (mark == kDialing) dialing_ready_ = true;
    if (mark >= kTimer) continue;
    const int peer = static_cast<int>(mark / kSides);
    if (LinkTo(peer).lost) continue;
    if ((events[index].events & EPOLLOUT) != 0 && !LinkTo(peer).send_failed) WriteTo(peer);
    if ((events[index].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0)
      ReadFrom(peer, static_cast<Side>(mark % kSides));
  }
  Admit();
  if (!halved_.empty()) LoseHalved();
  Arm();
  // The peer's last messages say more than that it is gone.
  for (const int peer : std::exchange(deaf_, {})) {
    for (const Side side : {kDialed, kAccepted}) {
      if (!LinkTo(peer).lost) ReadFrom(peer, side);
    }
    if (!LinkTo(peer).lost) Lose(peer, "it takes no more messages");
  }
  return {};
}

// A stopped process is not lost: its host still acknowledges.
void TcpControlLinks::LookAfterHosts() {
  const int64_t now = NowNs();
  if (options_.host_timeout_ns == 0 || now < look_after_hosts_ns_) return;
  look_after_hosts_ns_ = now + kLookAfterHosts;
  for (const int peer : used_) {
    Link& link = *links_[peer];
    if (!link.open() || !link.asked || !link.out()) continue;
    const StreamHealth health = HealthOf(link.out().get());
    const int64_t silent = link.silence.Look(health, now);
    link.asked = health.owes || link.writer.pending() > 0;
    if (silent >= options_.host_timeout_ns)
      Lose(peer, SilenceText(silent, options_.host_timeout_ns));
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
  if (peer < 0 || peer >= options_.size || peer == options_.rank) {
    return MakeError(ErrorKind::kInvalid, "no control link to rank " + std::to_string(peer));
  }
  if (bytes.size() > kLongestMessage) {
    return MakeError(ErrorKind::kInvalid,
                     "a control message of " + std::to_string(bytes.size()) + " bytes is too long");
  }
  Link& link = LinkTo(peer);
  if (link.writer.pending() > kLongestBacklog) {
    return MakeError(ErrorKind::kPeerLost,
                     "rank " + std::to_string(peer) + " does not read its control messages", peer);
  }
  if (link.lost || link.send_failed) return {};  // Receive reports the reason
  if (!link.sends_on && HasLeft(peer)) return {};
  const bool idle = link.writer.pending() == 0;
  link.writer.Queue(kControl, bytes);
  link.asked = true;
  ++messages_sent_;
  bytes_sent_ += bytes.size();
  if (!link.sends_on) {
    if (std::exchange(link.dialed, true)) return {};
    dialing_->Dial(peer, 1, true);
    Arm();
    return {};
  }
  // With a backlog the socket is full; epoll tells when it takes more.
  if (idle && holding_) held_.push_back(peer);
  if (idle && !holding_) WriteTo(peer);
  return {};
}

void TcpControlLinks::Flush() {
  holding_ = false;
  for (const int peer : held_) {
    const Link& link = LinkTo(peer);
    if (link.open() && !link.send_failed && link.writer.pending() > 0) WriteTo(peer);
  }
  held_.clear();
}

Result<std::optional<ControlMessage>> TcpControlLinks::Receive() {
  // The message before was the last that had come: its reader has work now, and looks again later.
  const bool looked = arrivals_.empty() && std::exchange(took_last_, false);
  if (arrivals_.empty() && !looked) {
    HA_TRY(LookAtNetwork());
    if (arrivals_.empty()) LookAfterHosts();
  }
  if (arrivals_.empty()) {
    RingIf(false);
    return std::optional<ControlMessage>();
  }
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  took_last_ = arrivals_.empty();
  RingIf(!arrivals_.empty() || !deaf_.empty());
  if (arrival.lost) {
    if (const int peer = arrival.lost->culprit; peer >= 0) {
      for (Connection& side : LinkTo(peer).sides) side.fd = Fd();
    }
    return *std::move(arrival.lost);
  }
  return std::optional<ControlMessage>(std::move(arrival.message));
}

}  // namespace

Result<Fd> ListenForControl(const std::string& rendezvous, int size) {
  HA_ASSIGN(const std::vector<SocketAddress> addresses, ResolveAddress(rendezvous));
  // A name may have addresses of a family that this host lacks.
  Error last;
  for (const SocketAddress& address : addresses) {
    const auto local = AddressTowards(address);
    if (local.ok()) return Listen(local.value(), std::max(1024, size));
    last = local.error();
  }
  return last;
}

Result<std::unique_ptr<ControlLinks>> ConnectTcpLinks(Fd listener, const TcpLinksOptions& options) {
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "control links need the job's secret");
  }
  auto links = std::make_unique<TcpControlLinks>(options);
  HA_TRY(links->Open(std::move(listener)));
  HA_TRY(links->Connect());
  return std::unique_ptr<ControlLinks>(std::move(links));
}

}  // namespace horoacc
