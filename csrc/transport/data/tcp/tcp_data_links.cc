#include "transport/data/tcp/tcp_data_links.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/data/slot_memory.h"
#include "transport/data/tcp/tcp_peer.h"
#include "transport/net/dialing.h"

namespace horoacc {
namespace {

constexpr uint64_t kDialing = UINT64_MAX;
constexpr uint64_t kTimer = UINT64_MAX - 1;
constexpr int64_t kLookAfter = 50 * kMillisecond;
constexpr int kMostStreams = 64;
constexpr int kBacklog = 1024;
// A cloud's limit for one flow is often a fraction of the network's rate; but a rank's descriptors
// are limited, too.
constexpr int kStreamsAcross = 8;
constexpr int kPeersWithMore = 32;

class Links final : public TcpDataLinks {
 public:
  explicit Links(TcpDataOptions options) : rank_(options.rank), options_(std::move(options)) {}
  ~Links() override;

  Status Open(Fd listener);

  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override;
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override;
  std::vector<int> TakeCallers() override { return std::exchange(callers_, {}); }
  Result<bool> Progress() override;
  [[nodiscard]] bool HasUnsent() override;
  void Abort(const Error& error) override;
  void LeaveToParent() override {
    dialing_->LeaveToParent();
    for (const auto& peer : peers_) peer->LeaveToParent();
  }
  [[nodiscard]] int WaitFd() const override { return epoll_.get(); }
  [[nodiscard]] const char* kind() const override { return "tcp"; }
  [[nodiscard]] DataCounters counters() const override { return counters_; }
  [[nodiscard]] TcpTraffic traffic(int peer) const override { return peers_[peer]->traffic(); }
  [[nodiscard]] int streams(int peer) const override { return peers_[peer]->streams(); }
  [[nodiscard]] SocketAddress address() const override { return own_; }

  [[nodiscard]] Status Health() const { return failed_ ? Status(*failed_) : Status(); }
  TcpPeer& peer(int rank) { return *peers_[rank]; }
  void Touch(int peer) { dirty_.insert(peer); }
  DataCounters& count() { return counters_; }

 private:
  Status Reach(const LinkSpec& spec, bool sends);
  [[nodiscard]] int StreamsTo(int peer) const;
  void Widen(int peer);
  Result<bool> Move();
  Result<bool> Admit();
  Result<bool> LookAtNetwork();
  void Arm();

  const int rank_;
  const TcpDataOptions options_;
  SocketAddress own_;
  Fd epoll_;
  Fd timer_;
  int64_t armed_ns_ = INT64_MAX;
  int64_t look_after_ns_ = 0;
  std::unique_ptr<Dialing> dialing_;
  int widened_by_dialing_ = 0;                   ///< peers
  std::vector<std::unique_ptr<TcpPeer>> peers_;  ///< by rank; this one's stays without connections
  bool dialing_ready_ = false;                   ///< dialing's descriptor is readable
  std::vector<bool> dialed_;
  std::vector<int> callers_;
  std::vector<bool> widened_;  ///< by rank: no more connections are added
  std::set<int> dirty_;        ///< peers to which frames may be sent
  DataCounters counters_;
  std::optional<Error> failed_;
};

class TcpSendLink final : public SendLink {
 public:
  TcpSendLink(Links& links, const LinkSpec& spec, OutboundLink* link)
      : SendLink(spec.slots),
        links_(links),
        spec_(spec),
        link_(link),
        memory_(spec.slots, spec.slot_bytes) {}
  ~TcpSendLink() override {
    links_.peer(spec_.peer).Detach(link_);
    links_.peer(spec_.peer).out().Close(link_);
  }
  TcpSendLink(const TcpSendLink&) = delete;
  TcpSendLink& operator=(const TcpSendLink&) = delete;

  [[nodiscard]] uint64_t taken() override { return link_->taken(); }
  [[nodiscard]] bool Reads() override { return links_.peer(spec_.peer).Reads(link_); }

  [[nodiscard]] Result<std::byte*> Slot() override {
    HA_TRY(links_.Health());
    return memory_.Of(posted());
  }

 private:
  Status DoPost(uint64_t number, SendPieces pieces) override {
    HA_TRY(links_.Health());
    uint64_t total = 0;
    for (const auto& piece : pieces) total += piece.size();
    HA_TRY(CheckPost(spec_, number, taken(), total));
    links_.count().messages += 1;
    links_.count().bytes += total;
    links_.count().copied += memory_.Share(pieces);
    links_.peer(spec_.peer).out().Post(*link_, pieces);
    links_.Touch(spec_.peer);
    return {};
  }

  Links& links_;
  const LinkSpec spec_;
  OutboundLink* link_;
  SlotMemory memory_;
};

class TcpReceiveLink final : public ReceiveLink {
 public:
  TcpReceiveLink(Links& links, int peer, InboundLink* link)
      : links_(links), peer_(peer), link_(link) {}
  ~TcpReceiveLink() override { links_.peer(peer_).in().Close(link_); }
  TcpReceiveLink(const TcpReceiveLink&) = delete;
  TcpReceiveLink& operator=(const TcpReceiveLink&) = delete;

  Status Expect(uint64_t bytes, ReceivePieces where) override {
    HA_TRY(links_.Health());
    return link_->Expect(bytes, where);
  }
  [[nodiscard]] Result<const Arrival*> Arrived() override {
    HA_TRY(links_.Health());
    return link_->Arrived();
  }
  void Release() override {
    link_->Release();
    links_.peer(peer_).out().Owe(link_->key(), link_->released());
    links_.Touch(peer_);
  }

 private:
  Links& links_;
  const int peer_;
  InboundLink* link_;
};

Links::~Links() {
  if (failed_) return;
  for (const auto& peer : peers_) {
    [[maybe_unused]] const auto sent = peer->Send();
    peer->End(DataKind::kLeave, "");
  }
}

Status Links::Open(Fd listener) {
  HA_ASSIGN(own_, LocalAddress(listener.get()));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError("epoll_create1");
  timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return SystemError("timerfd_create");
  const int size = static_cast<int>(options_.host_of.size());
  Dialing::Options dialing;
  dialing.terms = {options_.secret, LinkPurpose::kData, options_.epoch, rank_, size};
  dialing.own = own_;
  dialing.address_of = options_.address_of;
  dialing.timeout_ns = options_.timeout_ns;
  dialing.log = options_.log;
  dialing.needed = [this](int peer) {
    dialed_[peer] = peers_[peer]->used();
    return dialed_[peer];
  };
  HA_ASSIGN(dialing_, Dialing::Start(std::move(dialing), std::move(listener)));
  const auto watch = [this](int fd, uint64_t mark) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = mark}};
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!watch(dialing_->WaitFd(), kDialing) || !watch(timer_.get(), kTimer)) {
    return SystemError("epoll_ctl");
  }
  dialed_.assign(options_.host_of.size(), false);
  for (int peer = 0; peer < size; ++peer) {
    peers_.push_back(std::make_unique<TcpPeer>(
        peer, options_.epoch, options_.checksums, options_.socket_buffer, options_.host_timeout_ns,
        epoll_.get(), StreamsTo(peer), *options_.counters, options_.sealing));
    widened_.push_back(options_.streams > 0 || StreamsTo(peer) == 1);
  }
  return {};
}

int Links::StreamsTo(int peer) const {
  if (options_.streams > 0) return std::min(options_.streams, kMostStreams);
  // Within a host nothing limits a connection.
  return options_.host_of[peer] == options_.host_of[rank_] ? 1 : kStreamsAcross;
}

/// Adds connections to a peer: the only one is full, on this side or the peer's.
void Links::Widen(int peer) {
  if (widened_[peer]) return;
  widened_[peer] = true;
  if (peer < rank_) {
    peers_[peer]->out().AskToWiden();
    Touch(peer);
  } else if (widened_by_dialing_ < kPeersWithMore) {
    // Limited, because most algorithms use few peers.
    ++widened_by_dialing_;
    dialing_->Dial(peer, StreamsTo(peer) - 1, false);
    Arm();
  }
}

/// Dials the peer, unless there is a connection or the peer is the one that dials.
Status Links::Reach(const LinkSpec& spec, bool sends) {
  HA_TRY(Health());
  if (spec.peer < 0 || spec.peer >= static_cast<int>(peers_.size()) || spec.peer == rank_) {
    return MakeError(ErrorKind::kInvalid, "no data link to rank " + std::to_string(spec.peer));
  }
  if (spec.slots < 1) return MakeError(ErrorKind::kInvalid, "a link has at least one slot");
  const bool dials = spec.peer > rank_ || (sends && spec.collective.standing());
  if (dials && !dialed_[spec.peer] && peers_[spec.peer]->streams() == 0) {
    dialed_[spec.peer] = true;
    dialing_->Dial(spec.peer, options_.streams > 0 ? StreamsTo(spec.peer) : 1, true);
    Arm();
  }
  return {};
}

Result<std::unique_ptr<SendLink>> Links::OpenSend(const LinkSpec& spec) {
  HA_TRY(Reach(spec, true));
  HA_ASSIGN(OutboundLink* const link,
            peers_[spec.peer]->out().Open({spec.collective, spec.channel}));
  return std::unique_ptr<SendLink>(std::make_unique<TcpSendLink>(*this, spec, link));
}

Result<std::unique_ptr<ReceiveLink>> Links::OpenReceive(const LinkSpec& spec) {
  HA_TRY(Reach(spec, false));
  HA_ASSIGN(InboundLink* const link, peers_[spec.peer]->in().Open(spec));
  return std::unique_ptr<ReceiveLink>(std::make_unique<TcpReceiveLink>(*this, spec.peer, link));
}

Result<bool> Links::Admit() {
  if (!std::exchange(dialing_ready_, false) && dialing_->due_ns() > NowNs()) return false;
  HA_ASSIGN(std::vector<Admitted> all, dialing_->Step());
  for (Admitted& admitted : all) {
    TcpPeer& peer = *peers_[admitted.peer_rank];
    if (peer.streams() >= kMostStreams) continue;
    HA_TRY(peer.Join(std::move(admitted.fd), admitted.keys));
    Touch(admitted.peer_rank);
  }
  return !all.empty();
}

Result<bool> Links::LookAtNetwork() {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  if (count < 0 && errno != EINTR) return SystemError("epoll_wait");
  bool moved = false;
  for (int index = 0; index < count; ++index) {
    const uint64_t mark = events[index].data.u64;
    if (mark == kTimer) {
      uint64_t expirations = 0;
      [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof(expirations));
      armed_ns_ = INT64_MAX;
    }
    if (mark == kDialing) dialing_ready_ = true;
    if (mark == kTimer || mark == kDialing) continue;
    const auto peer = static_cast<int>(mark >> 16);
    if ((events[index].events & EPOLLOUT) != 0) Touch(peer);
    if ((events[index].events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) continue;
    HA_ASSIGN(const bool read, peers_[peer]->Read(mark & 0xffff));
    if (peer > rank_ && peers_[peer]->asks_to_widen()) Widen(peer);
    if (peers_[peer]->in().TakeCall()) callers_.push_back(peer);
    moved = moved || read;
    HA_TRY(peers_[peer]->CheckPresence());
  }
  return moved;
}

/// Sets the timer for due dials, and for streams that are full or whose peer has not acknowledged
/// everything.
void Links::Arm() {
  int64_t due = dialing_->due_ns();
  if (std::ranges::any_of(peers_, [](const auto& peer) { return peer->watched(); })) {
    due = std::min(due, look_after_ns_);
  }
  if (due == armed_ns_ || due == INT64_MAX) return;
  armed_ns_ = due;
  itimerspec when = {};
  // Zero would turn it off.
  const int64_t at = std::max<int64_t>(due, 1);
  when.it_value = {at / kSecond, at % kSecond};
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

Result<bool> Links::Move() {
  HA_ASSIGN(bool moved, LookAtNetwork());
  HA_ASSIGN(const bool joined, Admit());
  moved = moved || joined;
  for (auto each = dirty_.begin(); each != dirty_.end();) {
    TcpPeer& peer = *peers_[*each];
    HA_ASSIGN(const bool sent, peer.Send());
    if (peer.full()) Widen(*each);
    HA_TRY(peer.CheckPresence());
    moved = moved || sent;
    // epoll reports when a full connection takes more bytes.
    const bool rest = peer.HasUnsent() && (sent || !peer.full());
    each = rest ? std::next(each) : dirty_.erase(each);
  }
  const int64_t now = NowNs();
  if (now >= look_after_ns_) {
    look_after_ns_ = now + kLookAfter;
    for (const auto& peer : peers_) {
      HA_TRY(peer->LookAfterStreams());
      HA_TRY(peer->CheckPresence());
    }
  }
  Arm();
  return moved;
}

Result<bool> Links::Progress() {
  HA_TRY(Health());
  auto moved = Move();
  if (!moved.ok()) failed_ = moved.error();
  return moved;
}

bool Links::HasUnsent() {
  if (failed_) return false;
  return std::ranges::any_of(peers_, [](const auto& peer) { return peer->HasUnsent(); });
}

void Links::Abort(const Error& error) {
  // An error that Progress found before is the cause; peers get that one.
  if (!failed_) failed_ = error;
  const std::string text = PackAbort(*failed_);
  for (const auto& peer : peers_) peer->End(DataKind::kAbort, text);
}

}  // namespace

Result<std::unique_ptr<TcpDataLinks>> ListenForData(TcpDataOptions options) {
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "data links need the job's secret");
  }
  HA_ASSIGN(const SocketAddress own, NumericAddress(options.address + ":0"));
  HA_ASSIGN(Fd listener, Listen(own, kBacklog));
  auto links = std::make_unique<Links>(std::move(options));
  HA_TRY(links->Open(std::move(listener)));
  return std::unique_ptr<TcpDataLinks>(std::move(links));
}

}  // namespace horoacc
