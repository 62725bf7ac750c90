#include "transport/net/dialing.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transport/net/interfaces.h"

namespace horoacc {
namespace {

constexpr int64_t kRedial = 20 * kMillisecond;
constexpr size_t kMostUnauthenticated = 256;
constexpr char kNoAddress[] = "its address is not known yet";

/// This port stays open while the job runs: unauthenticated peers must leave the program its
/// descriptors.
size_t MostUnauthenticated() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostUnauthenticated;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 8, 4, kMostUnauthenticated));
}

}  // namespace

Dialing::Dialing(Options options)
    : options_(std::move(options)),
      admission_(options_.terms, MostUnauthenticated() + options_.ranks_expected,
                 std::min(kHandshakeTimeoutNs, options_.timeout_ns), options_.log) {}

Result<std::unique_ptr<Dialing>> Dialing::Start(Options options, Fd listener) {
  std::unique_ptr<Dialing> dialing(new Dialing(std::move(options)));
  HA_TRY(dialing->admission_.MakeWaitable());
  HA_TRY(dialing->admission_.Listen(std::move(listener)));
  return dialing;
}

void Dialing::Dial(int peer, int count, bool must, int64_t timeout_ns) {
  for (int index = 0; index < count; ++index) {
    attempts_.push_back(
        {.peer = peer, .since_ns = NowNs(), .timeout_ns = timeout_ns, .due_ns = 0, .must = must});
  }
}

int64_t Dialing::due_ns() const {
  int64_t due = unreachable_ ? 0 : admission_.due_ns();
  for (const Attempt& attempt : attempts_) {
    if (!attempt.reached) due = std::min(due, attempt.due_ns);
  }
  return due;
}

// " at 10.0.0.2:4711 over eth0 (10.0.0.1)", if it is known.
std::string Dialing::Way(int peer) const {
  const std::optional<SocketAddress> address = options_.address_of(peer);
  return address ? " at " + address->ToString() + " " + WayTo(*address) : "";
}

std::string Dialing::WhyNot(int peer) const {
  const auto attempt = std::ranges::find(attempts_, peer, &Attempt::peer);
  std::string why;
  if (attempt != attempts_.end() && !attempt->reason.empty())
    why = "; rank " + std::to_string(peer) + Way(peer) + ": " + attempt->reason;
  if (const std::string refused = admission_.TurnedAway(); !refused.empty())
    why += " (" + refused + ")";
  return why;
}

bool Dialing::Failed(int peer) const {
  return std::ranges::any_of(attempts_, [peer](const Attempt& attempt) {
    return attempt.peer == peer && !attempt.reached && !attempt.reason.empty() &&
           attempt.reason != kNoAddress;
  });
}

void Dialing::Again(Attempt& attempt, std::string reason) {
  const int64_t now = NowNs();
  attempt.reached = !options_.needed(attempt.peer);  // it may have shut down meanwhile
  if (attempt.reached) return;
  if (now - attempt.since_ns >= attempt.timeout_ns) {
    attempt.reached = true;
    if (!attempt.must || unreachable_) return;
    unreachable_ = MakeError(ErrorKind::kPeerLost,
                             "rank " + std::to_string(attempt.peer) + " cannot be reached" +
                                 Way(attempt.peer) + ": " + reason,
                             attempt.peer);
    return;
  }
  attempt.due_ns = now + kRedial;
  attempt.reason = std::move(reason);
}

void Dialing::Try(Attempt& attempt, int tag) {
  const std::optional<SocketAddress> address = options_.address_of(attempt.peer);
  if (!address) {
    attempt.since_ns = NowNs();
    return Again(attempt, kNoAddress);
  }
  auto connecting = StartDial(*address, options_.own ? &*options_.own : nullptr);
  if (!connecting.ok()) return Again(attempt, connecting.error().message);
  attempt.due_ns = kUnderWay;
  if (const Status begun = admission_.Dial(std::move(connecting).value(), tag); !begun.ok())
    Again(attempt, begun.error().message);
}

Result<std::vector<Admitted>> Dialing::Step() {
  if (unreachable_) return *std::exchange(unreachable_, std::nullopt);
  const int64_t now = NowNs();
  for (size_t tag = 0; tag < attempts_.size(); ++tag) {
    Attempt& attempt = attempts_[tag];
    if (!attempt.reached && attempt.due_ns <= now) Try(attempt, static_cast<int>(tag));
  }
  HA_ASSIGN(Admission::Outcome outcome, admission_.Step(0));
  for (const FailedDial& failed : outcome.failed) {
    Attempt& attempt = attempts_[failed.tag];
    // The heartbeat monitor decides whether a peer that connects but sends nothing is lost.
    if (failed.silent && attempt.must) attempt.since_ns = NowNs();
    // A peer's refusal is kept: it says more than that the peer no longer answers.
    const bool answered = failed.error.kind == ErrorKind::kConfig;
    Again(attempt, answered || !attempt.refused ? failed.error.message : attempt.reason);
    attempt.refused |= answered;
  }
  std::vector<Admitted> connected;
  for (Admitted& admitted : outcome.admitted) {
    const int rank = admitted.peer_rank;
    if (admitted.dialed >= 0) {
      Attempt& attempt = attempts_[admitted.dialed];
      if (rank != attempt.peer) {
        Again(attempt, "rank " + std::to_string(rank) + " answers there");
        continue;
      }
      attempt.reached = true;
    } else if (rank < 0 || rank >= options_.terms.size || rank == options_.terms.rank) {
      continue;
    }
    connected.push_back(std::move(admitted));
  }
  if (std::ranges::all_of(attempts_, &Attempt::reached)) attempts_.clear();
  return connected;
}

}  // namespace horoacc
