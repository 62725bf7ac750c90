#include "transport/memory/host_share.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "transport/memory/fd_passing.h"
#include "transport/net/admission.h"
#include "transport/net/handshake.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kPatience = 10 * kSecond;
constexpr int64_t kRedial = 20 * kMillisecond;
constexpr size_t kStrangers = 64;
constexpr char kFailure = '!';  ///< first character of a blob that reports one

/// What one rank brings, in the order in which it is passed: memory, eventfd, pidfd. A kernel
/// without pidfds leaves the last one out.
struct Gift {
  Segment memory;
  std::shared_ptr<Fd> wake;
  std::shared_ptr<Fd> pidfd;

  [[nodiscard]] std::vector<int> Fds() const {
    std::vector<int> fds{memory.fd(), wake->get()};
    if (pidfd) fds.push_back(pidfd->get());
    return fds;
  }
};

Result<Gift> MakeGift(size_t memory_bytes) {
  Gift gift;
  HA_ASSIGN(gift.memory, Segment::Create("horoacc-memory", memory_bytes));
  gift.wake = std::make_shared<Fd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!*gift.wake) return SystemError("eventfd");
  // Of ourselves, and then passed: no peer has to trust a number that may be reused, and it works
  // between containers that number their processes differently.
  Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (self) gift.pidfd = std::make_shared<Fd>(std::move(self));
  return gift;
}

Result<Gift> Unwrap(std::vector<Fd> fds) {
  if (fds.size() != 2 && fds.size() != 3) {
    return MakeError(ErrorKind::kSystem, "expected 2 or 3 descriptors");
  }
  Gift gift;
  HA_ASSIGN(gift.memory, Segment::Map(std::move(fds[0])));
  gift.wake = std::make_shared<Fd>(std::move(fds[1]));
  if (fds.size() == 3) gift.pidfd = std::make_shared<Fd>(std::move(fds[2]));
  return gift;
}

/// The ranks that claim one host, and what they exchange.
class Household {
 public:
  Household(const Bootstrap& bootstrap, const HostOptions& options, std::vector<int> ranks)
      : ranks_(std::move(ranks)),
        gifts_(ranks_.size()),
        options_(options),
        local_rank_(static_cast<int>(std::ranges::find(ranks_, bootstrap.rank()) - ranks_.begin())),
        terms_{options.secret, LinkPurpose::kHost, options.epoch, bootstrap.rank(),
               bootstrap.size()} {}

  [[nodiscard]] bool leads() const { return local_rank_ == 0; }
  [[nodiscard]] int leader() const { return ranks_.front(); }

  /// What this rank contributes; the leader's result is the name of its socket.
  Result<std::string> Prepare() {
    HA_ASSIGN(gifts_[local_rank_], MakeGift(options_.memory_bytes));
    if (!leads()) return std::string();
    HA_ASSIGN(control_, Segment::Create("horoacc-control", options_.control_bytes));
    if (ranks_.size() == 1) return std::string();
    HA_ASSIGN(const std::string random, RandomBytes(16));
    std::string name = "horoacc-";
    for (const char byte : random) {
      name += "0123456789abcdef"[(byte >> 4) & 15];
      name += "0123456789abcdef"[byte & 15];
    }
    HA_ASSIGN(const SocketAddress address, AbstractAddress(name));
    HA_ASSIGN(listener_, Listen(address, static_cast<int>(ranks_.size() + kStrangers)));
    return name;
  }

  Status Exchange(const std::string& name, int64_t deadline_ns) {
    if (ranks_.size() == 1) return {};
    return leads() ? Lead(deadline_ns) : Join(name, deadline_ns);
  }

  HostShare Finish() {
    HostShare share;
    share.local_rank = local_rank_;
    share.epoch = options_.epoch;
    share.ranks = ranks_;
    share.control = control_;
    for (size_t local = 0; local < gifts_.size(); ++local) {
      share.memory.push_back(gifts_[local]->memory);
      share.wake.push_back(gifts_[local]->wake);
      const bool own = static_cast<int>(local) == local_rank_;
      share.pidfds.push_back(own ? nullptr : gifts_[local]->pidfd);
    }
    return share;
  }

 private:
  Status Lead(int64_t deadline_ns);
  Result<std::vector<Fd>> AdmitAll(int64_t deadline_ns);
  Status Join(const std::string& name, int64_t deadline_ns);
  Result<Fd> DialLeader(const SocketAddress& address, int64_t deadline_ns);

  std::vector<int> ranks_;                  ///< global, ascending
  std::vector<std::optional<Gift>> gifts_;  ///< by local rank
  const HostOptions& options_;
  int local_rank_;
  HandshakeTerms terms_;
  Segment control_;
  Fd listener_;
};

Error Trouble(int rank, Error error) {
  error.culprit = rank;
  return std::move(error).Within("rank " + std::to_string(rank));
}

/// Connections to the other ranks of the host, by local rank.
Result<std::vector<Fd>> Household::AdmitAll(int64_t deadline_ns) {
  Admission admission(terms_, kStrangers + ranks_.size(), kPatience, options_.log,
                      options_.cancellation);
  HA_TRY(admission.Listen(std::move(listener_)));
  std::vector<Fd> members(ranks_.size());
  while (true) {
    std::string missing;
    int culprit = -1;
    for (size_t local = 1; local < ranks_.size(); ++local) {
      if (members[local]) continue;
      if (culprit < 0) culprit = ranks_[local];
      missing += (missing.empty() ? "" : ", ") + std::to_string(ranks_[local]);
    }
    if (culprit < 0) return members;
    if (NowNs() >= deadline_ns) {
      const std::string why = admission.TurnedAway();
      return MakeError(ErrorKind::kConfig,
                       "rank(s) " + missing + " did not come to the socket of rank " +
                           std::to_string(leader()) + (why.empty() ? "" : " (" + why + ")"),
                       culprit);
    }
    HA_ASSIGN(Admission::Outcome outcome, admission.Step(deadline_ns));
    for (Admitted& guest : outcome.admitted) {
      const auto place = std::ranges::find(ranks_, guest.peer_rank);
      if (place == ranks_.end() || place == ranks_.begin()) continue;
      Fd& seat = members[place - ranks_.begin()];
      if (!seat || HungUp(seat)) seat = std::move(guest.fd);
    }
  }
}

Status Household::Lead(int64_t deadline_ns) {
  HA_ASSIGN(const std::vector<Fd> members, AdmitAll(deadline_ns));
  for (size_t local = 1; local < members.size(); ++local) {
    auto passed = ReceiveFds(members[local].get(), deadline_ns);
    if (!passed.ok()) return Trouble(ranks_[local], std::move(passed.error()));
    auto gift = Unwrap(std::move(passed.value().fds));
    if (!gift.ok()) return Trouble(ranks_[local], std::move(gift.error()));
    gifts_[local] = std::move(gift).value();
  }
  for (size_t local = 1; local < members.size(); ++local) {
    const int control = control_.fd();
    Status sent = SendFds(members[local].get(), 0, {&control, 1}, deadline_ns);
    for (size_t from = 0; sent.ok() && from < gifts_.size(); ++from) {
      if (from == local) continue;
      sent = SendFds(members[local].get(), static_cast<uint32_t>(from), gifts_[from]->Fds(),
                     deadline_ns);
    }
    if (!sent.ok()) return Trouble(ranks_[local], std::move(sent.error()));
  }
  return {};
}

Result<Fd> Household::DialLeader(const SocketAddress& address, int64_t deadline_ns) {
  Admission admission(terms_, 0, kPatience, options_.log, options_.cancellation);
  std::string reason = "no time to try";
  while (NowNs() < deadline_ns) {
    auto connecting = StartDial(address);
    if (!connecting.ok()) {
      reason = connecting.error().message;
    } else {
      HA_TRY(admission.Dial(std::move(connecting).value(), 0));
      while (NowNs() < deadline_ns) {
        HA_ASSIGN(Admission::Outcome outcome, admission.Step(deadline_ns));
        if (!outcome.admitted.empty()) return std::move(outcome.admitted[0].fd);
        if (outcome.failed.empty()) continue;
        reason = outcome.failed[0].error.message;
        break;
      }
    }
    HA_TRY(PollUntil({}, std::min(NowNs() + kRedial, deadline_ns), options_.cancellation));
  }
  return MakeError(ErrorKind::kConfig, "cannot reach the socket of rank " +
                                           std::to_string(leader()) + " (" + reason +
                                           "); are they in different containers?");
}

Status Household::Join(const std::string& name, int64_t deadline_ns) {
  HA_ASSIGN(const SocketAddress address, AbstractAddress(name));
  HA_ASSIGN(const Fd socket, DialLeader(address, deadline_ns));
  HA_TRY(SendFds(socket.get(), static_cast<uint32_t>(local_rank_), gifts_[local_rank_]->Fds(),
                 deadline_ns));
  HA_ASSIGN(PassedFds first, ReceiveFds(socket.get(), deadline_ns));
  if (first.fds.size() != 1)
    return MakeError(ErrorKind::kSystem, "the control segment did not come");
  HA_ASSIGN(control_, Segment::Map(std::move(first.fds[0])));
  for (size_t count = 1; count < gifts_.size(); ++count) {
    HA_ASSIGN(PassedFds passed, ReceiveFds(socket.get(), deadline_ns));
    if (passed.number >= gifts_.size() || gifts_[passed.number]) {
      return MakeError(ErrorKind::kSystem, "the memory of an unexpected rank came");
    }
    HA_ASSIGN(gifts_[passed.number], Unwrap(std::move(passed.fds)));
  }
  return {};
}

/// A blob that says what went wrong here and whose fault it is.
std::string Report(const Error& error, int rank) {
  return kFailure + std::to_string(error.culprit < 0 ? rank : error.culprit) + " " + error.message;
}

/// Everybody says how it went, so that either all ranks go on or all of them stop, with one text.
Result<std::vector<std::string>> Agree(Bootstrap& bootstrap, const HostOptions& options,
                                       const Result<std::string>& own) {
  const std::string blob = own.ok() ? own.value() : Report(own.error(), bootstrap.rank());
  HA_ASSIGN(std::vector<std::string> blobs, bootstrap.AllGather(blob, options.deadline_ns));
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    if (!blobs[rank].starts_with(kFailure)) continue;
    const size_t space = blobs[rank].find(' ');
    int culprit = rank;
    const size_t end = std::min(space, blobs[rank].size());
    std::from_chars(blobs[rank].data() + 1, blobs[rank].data() + end, culprit);
    return MakeError(ErrorKind::kConfig,
                     "rank " + std::to_string(rank) + " cannot share memory on host '" +
                         options.label + "': " + blobs[rank].substr(space + 1),
                     culprit);
  }
  return blobs;
}

}  // namespace

Result<HostShare> ShareHost(Bootstrap& bootstrap, const HostOptions& options) {
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "sharing memory needs the job's secret");
  }
  HA_ASSIGN(const std::vector<std::string> labels,
            bootstrap.AllGather(options.label, options.deadline_ns));
  std::vector<int> ranks;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    if (labels[rank] == options.label) ranks.push_back(rank);
  }
  Household household(bootstrap, options, std::move(ranks));
  HA_ASSIGN(const std::vector<std::string> names, Agree(bootstrap, options, household.Prepare()));
  // Ends before the deadline, so that there is time left to tell everybody what went wrong.
  const int64_t now = NowNs();
  const int64_t deadline_ns = now + (options.deadline_ns - now) / 4 * 3;
  const Status exchanged = household.Exchange(names[household.leader()], deadline_ns);
  const Result<std::string> own =
      exchanged.ok() ? Result<std::string>(std::string()) : Result<std::string>(exchanged.error());
  HA_TRY(Agree(bootstrap, options, own));
  return household.Finish();
}

}  // namespace horoacc
