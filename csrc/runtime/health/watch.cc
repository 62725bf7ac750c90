// Who is dead, and who keeps the others waiting.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kLookAtPeersEvery = 100 * kMillisecond;
constexpr int64_t kOwnPause = 2 * kSecond;  // looks are far closer together
constexpr size_t kRanksInReport = 8;

std::string RankList(const std::vector<int>& ranks) {
  std::string text;
  for (size_t k = 0; k < std::min(ranks.size(), kRanksInReport); ++k) {
    text += (k ? ", " : "") + std::to_string(ranks[k]);
  }
  if (ranks.size() > kRanksInReport)
    text += " and " + std::to_string(ranks.size() - kRanksInReport) + " more";
  return text;
}

}  // namespace

// Called by the coordinator and by waiting callers, at most every 100 ms.
void Engine::WatchPeers() {
  const int64_t now = NowNs();
  int64_t due = next_watch_ns_.load(std::memory_order_relaxed);
  if (now < due || !next_watch_ns_.compare_exchange_strong(due, now + kLookAtPeersEvery)) return;
  const auto left = [this](size_t local) {
    const uint32_t phase = control_.state(local).phase.load(std::memory_order_acquire);
    return static_cast<RankPhase>(phase) == RankPhase::kLeft;
  };
  if (left(share_.local_rank)) return;
  const std::unique_lock watching(watch_mutex_, std::try_to_lock);
  if (!watching) return;
  for (size_t l = 0; l < share_.ranks.size(); ++l) {
    if (static_cast<int>(l) == share_.local_rank || !share_.pidfds[l]) continue;
    pollfd watched{share_.pidfds[l]->get(), POLLIN, 0};
    if (::poll(&watched, 1, 0) <= 0) continue;
    if (left(l)) continue;
    const int rank = share_.ranks[l];
    Abort(MakeError(ErrorKind::kPeerLost,
                    "rank " + std::to_string(rank) + " died without shutting down; " +
                        HowFar(static_cast<uint32_t>(l)),
                    rank));
    return;
  }
  WatchSilences(now);
  doubtful_.store(heartbeats_->doubtful(), std::memory_order_relaxed);
}

void Engine::WatchStalls() {
  if (settings_.stall_check_disable) return;
  const int64_t now = NowNs();
  const auto warn_after = FromSeconds(settings_.stall_warning_seconds);
  const auto end_after = FromSeconds(settings_.stall_shutdown_seconds);
  for (const auto& set : Sets()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::lock_guard lock(set->queue.mutex);
    for (const uint32_t id : set->queue.in_flight.ids()) {
      const std::shared_ptr<Entry> entry = set->queue.in_flight.Find(id);
      const int64_t waited = now - entry->submitted_ns;
      if (entry->decided.load(std::memory_order_relaxed)) {
        if (!WatchRun(*set, *entry, {warn_after, end_after}, now)) return;
        continue;
      }
      if (waited > warn_after && !entry->stall_reported) ReportStall(*set, *entry, waited);
      if (end_after == 0 || waited <= end_after) continue;
      const std::optional<Attendance> attendance = AttendanceOf(*set, *entry);
      if (!attendance || attendance->missing.empty()) continue;  // it runs
      const std::vector<int>& missing = attendance->missing;
      Abort(MakeError(ErrorKind::kTimeout,
                      "tensor '" + entry->display_name + "' was not submitted by rank(s) " +
                          RankList(missing) + " within " + std::to_string(waited / kSecond) + " s",
                      missing[0]));
      return;
    }
    if (!WatchJoins(*set, {warn_after, end_after})) return;
  }
}

// All ranks have submitted it. A slow collective is no stalled one; in one that is stuck nothing
// goes on at all, and no data come from other hosts, of whatever collective. Under the queue's
// lock. False if that ended the job.
bool Engine::WatchRun(ProcessSet& set, Entry& entry, StallLimits limits, int64_t now_ns) {
  const uint64_t moves =
      set.moves.load(std::memory_order_relaxed) + data_moves_.load(std::memory_order_relaxed);
  // While this process itself did not run, it could see nothing.
  const bool away = now_ns - std::exchange(set.moves_looked_ns, now_ns) > kOwnPause;
  if (std::exchange(set.moves_seen, moves) != moves || away) set.moved_ns = now_ns;
  const int64_t still = now_ns - std::max(entry.submitted_ns, set.moved_ns);
  const bool ends = limits.end_ns != 0 && still > limits.end_ns;
  if (still <= limits.warn_ns && !ends) return true;
  const std::string text = "tensor '" + entry.display_name +
                           "' was submitted by all ranks, but nothing of it has gone on here for " +
                           std::to_string(still / kSecond) +
                           " s: what other ranks send does not arrive";
  if (!std::exchange(entry.stall_reported, true)) log_.Write(LogLevel::kWarning, text);
  if (ends) Abort(MakeError(ErrorKind::kTimeout, text));
  return !ends;
}

// A join waits for as long as the others have data: it stalls once they do nothing any more either.
// Under the queue's lock. False if that ended the job.
bool Engine::WatchJoins(ProcessSet& set, StallLimits limits) {
  if (set.queue.joins.empty()) return true;
  const Entry& entry = *set.queue.joins.front();
  const int64_t waited = NowNs() - std::max(entry.submitted_ns, set.queue.join_moved_ns);
  const bool ends = limits.end_ns != 0 && waited > limits.end_ns;
  if (waited <= limits.warn_ns && !ends) return true;
  const uint32_t join = set.control->JoinCount(set.context.me);
  if (join % 2 == 0) return true;  // not announced yet, or over already
  std::vector<int> joined;
  std::vector<int> missing;
  if (set.multi_host_controller) {
    const std::optional<Attendance> attendance = AttendanceOf(set, entry);
    if (!attendance) return true;  // not known yet
    joined = attendance->ready;
    missing = attendance->missing;
  } else {
    for (uint32_t r = 0; r < set.context.ranks; ++r)
      (set.control->IsMissingIn(join, r) ? missing : joined).push_back(set.ranks[r]);
  }
  if (missing.empty()) return true;
  const std::string seconds = std::to_string(waited / kSecond) + " s";
  if (waited > limits.warn_ns && set.control->header().join_stall_told.exchange(join) != join) {
    log_.Write(LogLevel::kWarning, "'" + entry.display_name + "' has waited for " + seconds +
                                       ": rank(s) " + RankList(joined) + " have joined, rank(s) " +
                                       RankList(missing) + " have not, and submit nothing");
  }
  if (!ends) return true;
  Abort(MakeError(ErrorKind::kTimeout,
                  "'" + entry.display_name + "' was not called by rank(s) " + RankList(missing) +
                      " within " + seconds + " in which they submitted nothing",
                  missing[0]));
  return false;
}

// Two ranks that wait for a tensor of one name in different process sets, each for the other, wait
// for ever: they disagree about the set. Both sets get the error.
//
// What the other rank has said of itself may be old: it may not have been on a core since. So the
// call that would be ended there comes first, then what the rank waits for, and what it has not
// submitted here comes last: all three were true when it fell asleep over that call.
void Engine::WatchProcessSets(const Entry& entry) {
  // Between hosts nobody sees what the others wait for; the stall watch tells it later.
  if (multi_host_ || entry.name.empty() || entry.complete.load(std::memory_order_acquire)) return;
  const std::shared_ptr<ProcessSet> here = FindSet(entry.process_set);
  for (uint32_t r = 0; here && r < here->context.ranks; ++r) {
    const std::atomic<uint64_t>& blocked = control_.state(here->control->local(r)).blocked_on;
    const uint64_t blocked_on = blocked.load(std::memory_order_seq_cst);
    if (blocked_on == kNotBlocked) continue;
    const std::shared_ptr<ProcessSet> there = FindSet(static_cast<uint32_t>(blocked_on >> 32));
    if (!there || there == here) continue;
    const auto id = static_cast<uint32_t>(blocked_on);
    const auto peer = std::ranges::find(there->ranks, here->ranks[r]);
    const bool member = std::ranges::find(there->ranks, placement_.rank) != there->ranks.end();
    if (!member || peer == there->ranks.end() || there->control->Known(entry.name) != id) continue;

    const Arrivals arrivals = there->control->id(id).arrivals.load(std::memory_order_seq_cst);
    const uint64_t open = arrivals.open();
    const Row& row_there =
        there->control->row(static_cast<uint32_t>(peer - there->ranks.begin()), id, open);
    if (arrivals.arrived() == 0 || row_there.generation.load(std::memory_order_seq_cst) != open ||
        blocked.load(std::memory_order_seq_cst) != blocked_on) {
      continue;
    }
    const Row& row_here = here->control->row(r, entry.id, entry.generation);
    if (row_here.generation.load(std::memory_order_seq_cst) == entry.generation) continue;
    if (here->control->HasJoined(r)) continue;
    {
      std::lock_guard lock(there->queue.mutex);
      if (there->queue.in_flight.Contains(id)) continue;
    }
    const int rank = here->ranks[r];
    const bool lower = placement_.rank < rank;
    const auto side = [](int who, uint32_t set) {
      return "rank " + std::to_string(who) + " has process set " + std::to_string(set);
    };
    const std::string mine = side(placement_.rank, here->id);
    const std::string other = side(rank, there->id);
    const Error error = MakeError(ErrorKind::kMismatch,
                                  "tensor '" + entry.display_name + "': mismatched process set: " +
                                      (lower ? mine + ", " + other : other + ", " + mine),
                                  std::max(rank, placement_.rank));
    Status status = here->controller->Reject({entry.id, entry.generation}, error);
    if (status.ok()) status = there->controller->Reject({id, open}, error);
    if (!status.ok()) Abort(status.error());
    return;
  }
}

// Whose patience ends first tells, so that a job of many ranks says it once, and in time: a lower
// rank may have submitted the tensor much later. Under the queue's lock.
void Engine::ReportStall(const ProcessSet& set, Entry& entry, int64_t waited_ns) {
  const std::optional<Attendance> attendance = AttendanceOf(set, entry);
  if (!attendance) return;  // not known yet, or it runs
  const auto& [ready, missing] = *attendance;
  if (!missing.empty() && !HasStacksOf(missing, entry)) return;
  entry.stall_reported = true;
  if (missing.empty()) return;  // nor will anybody be later
  // Between hosts there is no control segment on which to say that it has been told.
  if (multi_host_ && ready.front() != placement_.rank) return;
  std::atomic<uint64_t>& told = set.control->id(entry.id).stall_told;
  if (told.exchange(entry.generation) == entry.generation) return;
  log_.Write(LogLevel::kWarning, "tensor '" + entry.display_name + "' has waited for " +
                                     std::to_string(waited_ns / kSecond) + " s: rank(s) " +
                                     RankList(ready) + " are ready, rank(s) " + RankList(missing) +
                                     " have not submitted it" + ShowStacks(missing));
}

}  // namespace horoacc
