#include "transport/net/admission.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

/// Sends what the socket takes of `outbox`.
Status SendSome(int fd, std::string& outbox) {
  while (!outbox.empty()) {
    const ssize_t sent = ::send(fd, outbox.data(), outbox.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && WouldBlock()) return {};
    if (sent < 0) return SystemError("connection");
    outbox.erase(0, static_cast<size_t>(sent));
  }
  return {};
}

}  // namespace

Result<Admission::Pending> Admission::Begin(Fd fd, Handshake::Side side, int tag) const {
  HA_ASSIGN(Handshake handshake, Handshake::Start(terms_, side));
  std::string greeting = handshake.TakeOutput();
  std::string from = side == Handshake::Side::kAccept ? NameOfPeer(fd) : "";
  return Pending{std::move(fd),       std::move(handshake),  {},
                 std::move(greeting), NowNs() + timeout_ns_, tag,
                 std::move(from)};
}

Status Admission::MakeWaitable() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError("epoll_create1");
  return {};
}

/// A descriptor leaves the epoll set when it is closed; Step removes one that it hands out.
Status Admission::Watch(const Fd& fd, bool writing, bool anew) {
  if (!epoll_) return {};
  epoll_event event{.events = writing ? uint32_t{EPOLLOUT} : uint32_t{EPOLLIN}, .data = {}};
  const int how = anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), how, fd.get(), &event) != 0) return SystemError("epoll_ctl");
  return {};
}

Status Admission::Listen(Fd listener) {
  listener_.Open(std::move(listener));
  return Watch(listener_.fd(), false, true);
}

Status Admission::Dial(Fd connecting, int tag) {
  HA_ASSIGN(Pending pending, Begin(std::move(connecting), Handshake::Side::kDial, tag));
  HA_TRY(Watch(pending.fd, true, true));
  pending_.push_back(std::move(pending));
  return {};
}

Result<std::optional<Admitted>> Admission::DialAndWait(const SocketAddress& address,
                                                       int64_t deadline_ns, std::string& reason) {
  auto connecting = StartDial(address);
  if (!connecting.ok()) {
    reason = connecting.error().message;
    return std::optional<Admitted>();
  }
  HA_TRY(Dial(std::move(connecting).value(), 0));
  while (NowNs() < deadline_ns) {
    HA_ASSIGN(Outcome outcome, Step(deadline_ns));
    if (!outcome.admitted.empty()) return std::optional(std::move(outcome.admitted[0]));
    if (outcome.failed.empty()) continue;
    reason = outcome.failed[0].error.message;
    break;
  }
  return std::optional<Admitted>();
}

/// Advances one handshake; true once the connection is admitted.
Result<bool> Admission::Advance(Pending& pending) {
  HA_TRY(SendSome(pending.fd.get(), pending.outbox));
  while (pending.outbox.empty() && !pending.handshake.done()) {
    char bytes[128];
    const size_t missing = pending.handshake.wanted() - pending.inbox.size();
    const ssize_t got = ::recv(pending.fd.get(), bytes, std::min(missing, sizeof(bytes)), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && WouldBlock()) return false;
    if (got < 0) return SystemError("connection");
    if (got == 0) {
      // An accepted connection proves little by this: a rank whose dial timed out closes it, too.
      return MakeError(pending.tag < 0 ? ErrorKind::kPeerLost : ErrorKind::kConfig,
                       "the other end closed the connection during the handshake (does it know "
                       "another secret?)");
    }
    pending.inbox.append(bytes, static_cast<size_t>(got));
    if (pending.inbox.size() < pending.handshake.wanted()) continue;
    HA_TRY(pending.handshake.Feed(std::exchange(pending.inbox, {})));
    pending.outbox += pending.handshake.TakeOutput();
    HA_TRY(SendSome(pending.fd.get(), pending.outbox));
  }
  return pending.handshake.done() && pending.outbox.empty();
}

void Admission::Accept() {
  // Bounded, so that handshakes under way advance during a flood of new connections.
  for (int count = 0; count < 16 && listener_.paused_until_ns() <= NowNs(); ++count) {
    RateLimitedListener::PendingConnection accepted = listener_.Accept();
    if (!accepted.fd && !accepted.refused) return;
    const auto was_accepted = [](const Pending& pending) { return pending.tag < 0; };
    const auto present = std::ranges::count_if(pending_, was_accepted);
    if (accepted.refused || static_cast<size_t>(present) >= capacity_) {
      const auto oldest = std::ranges::find_if(pending_, was_accepted);
      if (oldest != pending_.end()) {
        TurnAway(oldest->from, MakeError(ErrorKind::kTimeout, "too many connections at once"));
        pending_.erase(oldest);
      }
    }
    if (accepted.refused) {
      TurnAway("somewhere", MakeError(ErrorKind::kSystem,
                                      "this process has no file descriptors left (ulimit -n)"));
      continue;
    }
    TuneStream(accepted.fd.get());
    const std::string from = NameOfPeer(accepted.fd);
    auto pending = Begin(std::move(accepted.fd), Handshake::Side::kAccept, -1);
    Status watched = pending.ok() ? Watch(pending.value().fd, false, true) : pending.error();
    if (watched.ok()) {
      pending_.push_back(std::move(pending).value());
    } else {
      TurnAway(from, watched.error());  // a shortage that the peers may have caused
    }
  }
}

/// A paused listener must not wake the thread that sleeps on WaitFd.
void Admission::PauseOrResume() {
  const bool pause = listener_.paused_until_ns() > NowNs();
  if (pause == paused_) return;
  paused_ = pause;
  if (!epoll_) return;
  epoll_event event{.events = pause ? uint32_t{0} : uint32_t{EPOLLIN}, .data = {}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.fd().get(), &event);
}

void Admission::TurnAway(const std::string& from, const Error& error) {
  ++turned_away_;
  last_reason_ = error.message;
  listener_.Charge(NowNs());
  if (logged_ || error.kind == ErrorKind::kPeerLost) return;
  logged_ = true;
  log_.Write(LogLevel::kWarning, "a connection from " + from + " to " + NameOf(terms_.purpose) +
                                     " was turned away: " + error.message +
                                     "; later ones are not logged");
}

void Admission::Drop(Pending& pending, const Error& error, Outcome& outcome) {
  if (pending.tag >= 0) {
    const bool silent = error.kind == ErrorKind::kTimeout && pending.outbox.empty();
    outcome.failed.push_back({pending.tag, error, silent});
  } else {
    // A broken connection says as little about its peer as a closed one.
    const bool broke = error.kind == ErrorKind::kSystem;
    TurnAway(pending.from, broke ? MakeError(ErrorKind::kPeerLost, error.message) : error);
  }
  pending.fd = Fd();
}

Result<Admission::Outcome> Admission::Step(int64_t deadline_ns) {
  std::vector<pollfd> waits;
  int64_t until = deadline_ns;
  PauseOrResume();
  for (const Pending& pending : pending_) {
    const short events = pending.outbox.empty() ? POLLIN : POLLOUT;
    waits.push_back({pending.fd.get(), events, 0});
    until = std::min(until, pending.expires_ns);
  }
  const bool listens = listener_.open() && !paused_;
  if (listens) waits.push_back({listener_.fd().get(), POLLIN, 0});
  if (paused_) until = std::min(until, listener_.paused_until_ns());
  HA_TRY(PollUntil(waits, until, cancellation_));

  Outcome outcome;
  const int64_t now = NowNs();
  for (size_t index = 0; index < pending_.size(); ++index) {
    Pending& pending = pending_[index];
    if (waits[index].revents != 0) {
      auto advanced = Advance(pending);
      if (!advanced.ok()) {
        Drop(pending, advanced.error(), outcome);
        continue;
      }
      if (advanced.value()) {
        if (epoll_) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pending.fd.get(), nullptr);
        outcome.admitted.push_back({std::move(pending.fd), pending.handshake.peer_rank(),
                                    pending.handshake.peer_size(), pending.tag,
                                    pending.handshake.keys()});
        continue;
      }
      HA_TRY(Watch(pending.fd, !pending.outbox.empty(), false));
    }
    if (now >= pending.expires_ns) {
      Drop(pending, MakeError(ErrorKind::kTimeout, "the handshake took too long"), outcome);
    }
  }
  const bool waiting = listens && waits.back().revents != 0;
  std::erase_if(pending_, [](const Pending& pending) { return !pending.fd; });
  if (waiting) Accept();
  PauseOrResume();
  return outcome;
}

int64_t Admission::due_ns() const {
  int64_t due = paused_ ? listener_.paused_until_ns() : INT64_MAX;
  for (const Pending& pending : pending_) due = std::min(due, pending.expires_ns);
  return due;
}

std::string Admission::TurnedAway() const {
  if (turned_away_ == 0) return "";
  return std::to_string(turned_away_) + " connection(s) turned away, the last because " +
         last_reason_;
}

bool HungUp(const Fd& fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && !WouldBlock() && errno != EINTR);
}

}  // namespace horoacc
