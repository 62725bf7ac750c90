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

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

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

/// A descriptor leaves the set when it is closed; one that is handed out has to be taken out.
Status Admission::Watch(const Fd& fd, bool writing, bool anew) {
  if (!epoll_) return {};
  epoll_event event{.events = writing ? uint32_t{EPOLLOUT} : uint32_t{EPOLLIN}, .data = {}};
  const int how = anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), how, fd.get(), &event) != 0) return SystemError("epoll_ctl");
  return {};
}

Status Admission::Listen(Fd listener) {
  HA_TRY(door_.Open(std::move(listener)));
  return Watch(door_.listener(), false, true);
}

Status Admission::Dial(Fd connecting, int tag) {
  HA_ASSIGN(Pending pending, Begin(std::move(connecting), Handshake::Side::kDial, tag));
  HA_TRY(Watch(pending.fd, true, true));
  pending_.push_back(std::move(pending));
  return {};
}

/// Moves one connection on; true once it is admitted.
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
      // Of one from outside it says little: a rank that lost its patience leaves like this, too.
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
  // The bound lets the connections that are here already move on under a flood of new ones.
  for (int count = 0; count < 16 && door_.rests_until_ns() <= NowNs(); ++count) {
    Door::Guest guest = door_.Accept();
    if (!guest.fd && !guest.refused) return;
    const auto guests = std::ranges::count_if(pending_, [](const auto& p) { return p.tag < 0; });
    if (guest.refused || static_cast<size_t>(guests) >= capacity_) {
      const auto oldest = std::ranges::find_if(pending_, [](const auto& p) { return p.tag < 0; });
      if (oldest != pending_.end()) {
        TurnAway(oldest->from, MakeError(ErrorKind::kTimeout, "too many connections at once"));
        pending_.erase(oldest);
      }
    }
    if (guest.refused) {
      TurnAway("somewhere", MakeError(ErrorKind::kSystem,
                                      "this process has no file descriptors left (ulimit -n)"));
      continue;
    }
    TuneStream(guest.fd.get());
    const std::string from = NameOfPeer(guest.fd);
    auto pending = Begin(std::move(guest.fd), Handshake::Side::kAccept, -1);
    Status watched = pending.ok() ? Watch(pending.value().fd, false, true) : pending.error();
    if (watched.ok()) {
      pending_.push_back(std::move(pending).value());
    } else {
      TurnAway(from, watched.error());  // a shortage that somebody outside may have caused
    }
  }
}

/// A door that rests must not wake whoever sleeps on WaitFd.
void Admission::OpenOrShutDoor() {
  const bool shut = door_.rests_until_ns() > NowNs();
  if (shut == shut_) return;
  shut_ = shut;
  if (!epoll_) return;
  epoll_event event{.events = shut ? uint32_t{0} : uint32_t{EPOLLIN}, .data = {}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, door_.listener().get(), &event);
}

void Admission::TurnAway(const std::string& from, const Error& error) {
  ++turned_away_;
  last_reason_ = error.message;
  door_.Charge(NowNs());
  if (told_ || error.kind == ErrorKind::kPeerLost) return;
  told_ = true;
  log_.Write(LogLevel::kWarning, "a connection from " + from + " to " + NameOf(terms_.purpose) +
                                     " was turned away: " + error.message +
                                     "; others will be without a word");
}

void Admission::Drop(Pending& pending, const Error& error, Outcome& outcome) {
  if (pending.tag >= 0) {
    const bool silent = error.kind == ErrorKind::kTimeout && pending.outbox.empty();
    outcome.failed.push_back({pending.tag, error, silent});
  } else {
    // A connection that broke is no more a unauthenticated peer's than one that was closed.
    const bool broke = error.kind == ErrorKind::kSystem;
    TurnAway(pending.from, broke ? MakeError(ErrorKind::kPeerLost, error.message) : error);
  }
  pending.fd = Fd();
}

Result<Admission::Outcome> Admission::Step(int64_t deadline_ns) {
  std::vector<pollfd> waits;
  int64_t until = deadline_ns;
  OpenOrShutDoor();
  for (const Pending& pending : pending_) {
    const short events = pending.outbox.empty() ? POLLIN : POLLOUT;
    waits.push_back({pending.fd.get(), events, 0});
    until = std::min(until, pending.expires_ns);
  }
  const bool listens = door_.open() && !shut_;
  if (listens) waits.push_back({door_.listener().get(), POLLIN, 0});
  if (shut_) until = std::min(until, door_.rests_until_ns());
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
                                    pending.handshake.peer_size(), pending.tag});
        continue;
      }
      HA_TRY(Watch(pending.fd, !pending.outbox.empty(), false));
    }
    if (now >= pending.expires_ns) {
      Drop(pending, MakeError(ErrorKind::kTimeout, "the handshake took too long"), outcome);
    }
  }
  const bool knocked = listens && waits.back().revents != 0;
  std::erase_if(pending_, [](const Pending& pending) { return !pending.fd; });
  if (knocked) Accept();
  OpenOrShutDoor();
  return outcome;
}

int64_t Admission::due_ns() const {
  int64_t due = shut_ ? door_.rests_until_ns() : INT64_MAX;
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
