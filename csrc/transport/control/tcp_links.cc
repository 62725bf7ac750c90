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
#include "transport/bootstrap/tcp_mesh.h"
#include "transport/data/tcp/stream_tuning.h"
#include "transport/net/frames.h"

namespace horoacc {
namespace {

constexpr uint32_t kControl = 1;  ///< the only kind of frame on these links
constexpr uint64_t kLongestMessage = 256ULL << 20;
/// What a peer that does not read may cost.
constexpr size_t kLongestBacklog = 512ULL << 20;
/// The doorbell's mark in the epoll set, where ranks have their number.
constexpr uint32_t kBell = UINT32_MAX;
constexpr int64_t kLookAfterHosts = 250 * kMillisecond;

std::string LostLink(int peer, const std::string& why) {
  return "lost the control link to rank " + std::to_string(peer) + ": " + why;
}

struct Link {
  explicit Link(uint64_t epoch) : reader(epoch, kLongestMessage), writer(epoch) {}

  Fd fd;
  FrameReader reader;
  FrameWriter writer;
  bool wants_to_write = false;  ///< registered for EPOLLOUT
  bool send_failed = false;     ///< what it sent before may still be read
  bool lost = false;            ///< Receive says so, or has said so
  bool asked = false;           ///< something was sent that may not have been acknowledged
  HostSilence silence;
};

/// A message that has come, or the end of its source's link.
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
  Fd doorbell_;  ///< in the epoll set; readable while arrivals_ is not empty but epoll might be
                 ///< quiet
  bool ringing_ = false;
  bool holding_ = false;
  std::vector<int> held_;  ///< peers for whom something was kept
  std::vector<int> deaf_;  ///< peers to whom sending has just failed
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

Status TcpControlLinks::Open(std::vector<Fd> connections) {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError("epoll_create1");
  doorbell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell_) return SystemError("eventfd");
  const auto watch = [this](const Fd& fd, uint32_t mark) {
    epoll_event event{.events = EPOLLIN, .data = {.u32 = mark}};
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0;
  };
  if (!watch(doorbell_, kBell)) return SystemError("epoll_ctl");
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    links_[peer].fd = std::move(connections[peer]);
    if (links_[peer].fd) {
      // Beside this link's own look at it: also a process that does not read, though its host
      // acknowledges, must not be waited for without end.
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
    if (events[index].data.u32 == kBell) continue;
    const int peer = static_cast<int>(events[index].data.u32);
    if ((events[index].events & EPOLLOUT) != 0) WriteTo(peer);
    if ((events[index].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) ReadFrom(peer);
  }
  // Its last words say more than that it has gone.
  for (const int peer : std::exchange(deaf_, {})) {
    if (links_[peer].fd) ReadFrom(peer);
    if (links_[peer].fd) Lose(peer, "it takes no more messages");
  }
  return {};
}

// A process may be stopped for as long as it likes: its host answers.
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
  if (link.lost || link.send_failed) return {};  // why is for Receive to say
  const bool idle = link.writer.pending() == 0;
  link.writer.Queue(kControl, bytes);
  link.asked = true;
  // Behind a backlog the socket is known to be full; epoll says when it is not.
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
