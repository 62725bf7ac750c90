#include "transport/data/tcp/tcp_dialing.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transport/net/interfaces.h"

namespace horoacc {
namespace {

constexpr int64_t kHandshakeTimeout = 10 * kSecond;
constexpr int64_t kRedial = 20 * kMillisecond;
constexpr size_t kStrangers = 256;

/// This port stays open while the job runs: unauthenticated peers must leave the program its
/// descriptors.
size_t RoomForStrangers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kStrangers;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 8, 4, kStrangers));
}

}  // namespace

TcpDialing::TcpDialing(Options options)
    : options_(std::move(options)),
      admission_(options_.terms, RoomForStrangers(),
                 std::min(kHandshakeTimeout, options_.timeout_ns), options_.log) {}

Result<std::unique_ptr<TcpDialing>> TcpDialing::Start(Options options, Fd listener) {
  std::unique_ptr<TcpDialing> dialing(new TcpDialing(std::move(options)));
  HA_TRY(dialing->admission_.MakeWaitable());
  HA_TRY(dialing->admission_.Listen(std::move(listener)));
  return dialing;
}

void TcpDialing::Dial(int peer, int count, bool must) {
  for (int index = 0; index < count; ++index) attempts_.push_back({peer, NowNs(), 0, false, must});
}

int64_t TcpDialing::due_ns() const {
  int64_t due = admission_.due_ns();
  for (const Attempt& attempt : attempts_) {
    if (!attempt.reached) due = std::min(due, attempt.due_ns);
  }
  return due;
}

Status TcpDialing::Again(Attempt& attempt, const std::string& reason) {
  const int64_t now = NowNs();
  if (now - attempt.since_ns >= options_.timeout_ns) {
    attempt.reached = !attempt.must;
    if (!attempt.must) return {};
    const std::string name = "rank " + std::to_string(attempt.peer);
    return MakeError(ErrorKind::kPeerLost,
                     name + " cannot be reached at " + options_.addresses[attempt.peer].ToString() +
                         " " + WayTo(options_.addresses[attempt.peer]) + ": " + reason,
                     attempt.peer);
  }
  attempt.due_ns = now + kRedial;
  return {};
}

Status TcpDialing::Try(Attempt& attempt, int tag) {
  auto connecting = StartDial(options_.addresses[attempt.peer], &options_.own);
  if (!connecting.ok()) return Again(attempt, connecting.error().message);
  attempt.due_ns = kUnderWay;
  Status begun = admission_.Dial(std::move(connecting).value(), tag);
  // A shortage on the way to one more connection is none of the job's.
  return begun.ok() || attempt.must ? begun : Again(attempt, begun.error().message);
}

Result<std::vector<Admitted>> TcpDialing::Step() {
  const int64_t now = NowNs();
  for (size_t tag = 0; tag < attempts_.size(); ++tag) {
    Attempt& attempt = attempts_[tag];
    if (!attempt.reached && attempt.due_ns <= now) HA_TRY(Try(attempt, static_cast<int>(tag)));
  }
  HA_ASSIGN(Admission::Outcome outcome, admission_.Step(0));
  for (const FailedDial& failed : outcome.failed) {
    Attempt& attempt = attempts_[failed.tag];
    // Whether a peer that can be reached lives, and for how long it may say nothing, is for those
    // to decide who watch it.
    if (failed.silent && attempt.must) attempt.since_ns = NowNs();
    HA_TRY(Again(attempt, failed.error.message));
  }
  std::vector<Admitted> seated;
  for (Admitted& guest : outcome.admitted) {
    if (guest.dialed >= 0) {
      Attempt& attempt = attempts_[guest.dialed];
      if (guest.peer_rank != attempt.peer) {
        HA_TRY(Again(attempt, "rank " + std::to_string(guest.peer_rank) + " answers there"));
        continue;
      }
      attempt.reached = true;
    } else if (guest.peer_rank < 0 || guest.peer_rank >= options_.terms.rank) {
      continue;  // only lower ranks dial
    }
    seated.push_back(std::move(guest));
  }
  if (std::ranges::all_of(attempts_, &Attempt::reached)) attempts_.clear();
  return seated;
}

}  // namespace horoacc
