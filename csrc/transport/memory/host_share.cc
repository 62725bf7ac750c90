#include "transport/memory/host_share.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "transport/bootstrap/gather_wire.h"
#include "transport/memory/fd_passing.h"
#include "transport/net/admission.h"
#include "transport/net/handshake.h"
#include "transport/net/interfaces.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr int64_t kRedial = 20 * kMillisecond;

/// One rank's descriptors, in the order in which they are passed.
struct RankShare {
  Segment memory;
  std::shared_ptr<Fd> wake;
  std::shared_ptr<Fd> pidfd;

  [[nodiscard]] std::vector<int> Fds() const { return {memory.fd(), wake->get(), pidfd->get()}; }
};

Result<RankShare> MakeOwn(size_t memory_bytes, std::shared_ptr<Fd>& life) {
  RankShare share;
  HA_ASSIGN(share.memory, Segment::Create("horoacc-memory", memory_bytes));
  share.memory.PreferHugePages();
  share.wake = std::make_shared<Fd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!*share.wake) return SystemError("eventfd");
  // Opened here and passed: a process number may be reused, and differs between containers.
  Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) {  // an old kernel, or a container's filter
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe2");
    self = Fd(ends[0]);
    life = std::make_shared<Fd>(ends[1]);
  }
  share.pidfd = std::make_shared<Fd>(std::move(self));
  return share;
}

Result<RankShare> Unwrap(std::vector<Fd> fds) {
  if (fds.size() != 3) return MakeError(ErrorKind::kSystem, "expected 3 descriptors");
  RankShare share;
  HA_ASSIGN(share.memory, Segment::Map(std::move(fds[0])));
  share.memory.PreferHugePages();
  share.wake = std::make_shared<Fd>(std::move(fds[1]));
  share.pidfd = std::make_shared<Fd>(std::move(fds[2]));
  return share;
}

/// The ranks with one host label, while they exchange descriptors.
class HostGroup {
 public:
  HostGroup(const Bootstrap& bootstrap, const HostOptions& options, std::vector<int> ranks)
      : ranks_(std::move(ranks)),
        shares_(ranks_.size()),
        options_(options),
        local_rank_(static_cast<int>(std::ranges::find(ranks_, bootstrap.rank()) - ranks_.begin())),
        terms_{options.secret, LinkPurpose::kHost, options.epoch, bootstrap.rank(),
               bootstrap.size()} {}

  [[nodiscard]] bool leads() const { return local_rank_ == 0; }
  [[nodiscard]] int leader() const { return ranks_.front(); }

  /// Makes this rank's memory; the leader's result is the name of its socket.
  Result<std::string> Prepare() {
    HA_ASSIGN(shares_[local_rank_], MakeOwn(options_.memory_bytes, life_));
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
    HA_ASSIGN(listener_, Listen(address, static_cast<int>(ranks_.size() + kUnauthenticatedPeers)));
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
    share.life = life_;
    for (size_t local = 0; local < shares_.size(); ++local) {
      share.memory.push_back(shares_[local]->memory);
      share.wake.push_back(shares_[local]->wake);
      const bool own = static_cast<int>(local) == local_rank_;
      share.pidfds.push_back(own ? nullptr : shares_[local]->pidfd);
    }
    return share;
  }

 private:
  Status Lead(int64_t deadline_ns);
  Result<std::vector<Fd>> AdmitAll(int64_t deadline_ns);
  Status Join(const std::string& name, int64_t deadline_ns);
  Result<Fd> DialLeader(const SocketAddress& address, int64_t deadline_ns);

  std::vector<int> ranks_;                        ///< global, ascending
  std::vector<std::optional<RankShare>> shares_;  ///< by local rank
  const HostOptions& options_;
  int local_rank_;
  HandshakeTerms terms_;
  Segment control_;
  std::shared_ptr<Fd> life_;
  Fd listener_;
};

Error Trouble(int rank, Error error) {
  error.culprit = rank;
  return std::move(error).Within("rank " + std::to_string(rank));
}

/// Connections to the other ranks of the host, by local rank.
Result<std::vector<Fd>> HostGroup::AdmitAll(int64_t deadline_ns) {
  Admission admission(terms_, kUnauthenticatedPeers + ranks_.size(), kHandshakeTimeoutNs,
                      options_.log, options_.cancellation);
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
    for (Admitted& admitted : outcome.admitted) {
      const auto place = std::ranges::find(ranks_, admitted.peer_rank);
      if (place == ranks_.end() || place == ranks_.begin()) continue;
      Fd& member = members[place - ranks_.begin()];
      if (!member || HungUp(member)) member = std::move(admitted.fd);
    }
  }
}

Status HostGroup::Lead(int64_t deadline_ns) {
  HA_ASSIGN(const std::vector<Fd> members, AdmitAll(deadline_ns));
  for (size_t local = 1; local < members.size(); ++local) {
    auto passed = ReceiveFds(members[local].get(), deadline_ns);
    if (!passed.ok()) return Trouble(ranks_[local], std::move(passed.error()));
    auto share = Unwrap(std::move(passed.value().fds));
    if (!share.ok()) return Trouble(ranks_[local], std::move(share.error()));
    shares_[local] = std::move(share).value();
  }
  for (size_t local = 1; local < members.size(); ++local) {
    const int control = control_.fd();
    Status sent = SendFds(members[local].get(), 0, {&control, 1}, deadline_ns);
    for (size_t from = 0; sent.ok() && from < shares_.size(); ++from) {
      if (from == local) continue;
      sent = SendFds(members[local].get(), static_cast<uint32_t>(from), shares_[from]->Fds(),
                     deadline_ns);
    }
    if (!sent.ok()) return Trouble(ranks_[local], std::move(sent.error()));
  }
  return {};
}

Result<Fd> HostGroup::DialLeader(const SocketAddress& address, int64_t deadline_ns) {
  Admission admission(terms_, 0, kHandshakeTimeoutNs, options_.log, options_.cancellation);
  std::string reason = "no time to try";
  while (NowNs() < deadline_ns) {
    HA_ASSIGN(std::optional<Admitted> leader, admission.DialAndWait(address, deadline_ns, reason));
    if (leader) return std::move(leader->fd);
    HA_TRY(PollUntil({}, std::min(NowNs() + kRedial, deadline_ns), options_.cancellation));
  }
  return MakeError(ErrorKind::kConfig, "cannot reach the socket of rank " +
                                           std::to_string(leader()) + " (" + reason +
                                           "); are they in different containers?");
}

Status HostGroup::Join(const std::string& name, int64_t deadline_ns) {
  HA_ASSIGN(const SocketAddress address, AbstractAddress(name));
  HA_ASSIGN(const Fd socket, DialLeader(address, deadline_ns));
  HA_TRY(SendFds(socket.get(), static_cast<uint32_t>(local_rank_), shares_[local_rank_]->Fds(),
                 deadline_ns));
  HA_ASSIGN(PassedFds first, ReceiveFds(socket.get(), deadline_ns));
  if (first.fds.size() != 1)
    return MakeError(ErrorKind::kSystem, "the control segment did not come");
  HA_ASSIGN(control_, Segment::Map(std::move(first.fds[0])));
  for (size_t count = 1; count < shares_.size(); ++count) {
    HA_ASSIGN(PassedFds passed, ReceiveFds(socket.get(), deadline_ns));
    if (passed.number >= shares_.size() || shares_[passed.number]) {
      return MakeError(ErrorKind::kSystem, "the memory of an unexpected rank came");
    }
    HA_ASSIGN(shares_[passed.number], Unwrap(std::move(passed.fds)));
  }
  return {};
}

/// A blob with a number before it.
std::string Numbered(size_t number, const std::string& rest) {
  return std::to_string(number) + '\n' + rest;
}

int NumberOf(const std::string& text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return std::max(number, 0);
}

std::string RestOf(const std::string& text) { return text.substr(text.find('\n') + 1); }

}  // namespace

Result<HostShare> ShareHost(Bootstrap& bootstrap, const HostOptions& options) {
  if (options.secret.empty()) {
    return MakeError(ErrorKind::kConfig, "sharing memory needs the job's secret");
  }
  // Rank 0 tells each rank the ranks of its label: how many, and which.
  const auto by_label =
      [](const std::vector<std::string>& labels) -> Result<std::vector<std::string>> {
    std::map<std::string, std::vector<int>> ranks_of;
    for (int rank = 0; rank < std::ssize(labels); ++rank) ranks_of[labels[rank]].push_back(rank);
    std::vector<std::string> answers;
    for (const std::string& label : labels)
      answers.push_back(Numbered(ranks_of[label].size(), PackRuns(ranks_of[label])));
    return answers;
  };
  HA_ASSIGN(const std::string told,
            bootstrap.Exchange(options.label, "", by_label, options.deadline_ns));
  HA_ASSIGN(std::vector<int> ranks, UnpackRuns(RestOf(told), NumberOf(told)));
  HostGroup group(bootstrap, options, std::move(ranks));
  const std::string task = " cannot share memory on host '" + HostName() + "'";
  // And the name of its leader's socket.
  const auto of_leader =
      [](const std::vector<std::string>& blobs) -> Result<std::vector<std::string>> {
    std::vector<std::string> answers;
    for (const std::string& blob : blobs) {
      const int leader = NumberOf(blob);
      if (leader >= std::ssize(blobs)) return MakeError(ErrorKind::kSystem, "no such rank leads");
      answers.push_back(RestOf(blobs[leader]));
    }
    return answers;
  };
  Result<std::string> prepared = group.Prepare();
  if (prepared.ok())
    prepared = Numbered(static_cast<size_t>(group.leader()), std::move(prepared).value());
  HA_ASSIGN(const std::string name,
            bootstrap.Exchange(prepared, task, of_leader, options.deadline_ns));
  // Ends before the deadline, so that there is time left to tell all ranks of a failure.
  const int64_t now = NowNs();
  const int64_t deadline_ns = now + (options.deadline_ns - now) / 4 * 3;
  HA_TRY(bootstrap.Barrier(group.Exchange(name, deadline_ns), task, options.deadline_ns));
  return group.Finish();
}

}  // namespace horoacc
