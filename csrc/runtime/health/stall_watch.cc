#include "runtime/health/stall_watch.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/clock.h"
#include "negotiate/disagreement.h"

namespace horoacc {
namespace {

constexpr int64_t kOwnPause = 2 * kSecond;  // looks are far closer together
constexpr size_t kRanksInReport = 8;

std::string RankList(std::span<const int> ranks) {
  if (ranks.size() <= kRanksInReport) return ListText(ranks);
  return ListText(ranks.first(kRanksInReport)) + " and " +
         std::to_string(ranks.size() - kRanksInReport) + " more";
}

std::string Seconds(int64_t ns) { return std::to_string(ns / kSecond) + " s"; }

}  // namespace

void StallWatch::Look() {
  if (job_.settings.stall_check_disable) return;
  const Limits limits{FromSeconds(job_.settings.stall_warning_seconds),
                      FromSeconds(job_.settings.stall_shutdown_seconds)};
  for (const auto& set : sets_.Own()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    Findings found;
    {
      // A caller may hold the queue and wait for the set's lock, whose owner is stopped: it looks
      // at the peers itself.
      const std::unique_lock lock(set->queue.mutex, std::try_to_lock);
      if (!lock) continue;
      for (const uint32_t id : set->queue.in_flight.ids()) {
        LookAtCall(*set, *set->queue.in_flight.Find(id), limits, found);
        if (found.end) break;
      }
      if (!found.end) LookAtJoin(*set, limits, found);
    }
    for (const std::string& warning : found.warnings) job_.log.Write(LogLevel::kWarning, warning);
    if (found.end) return failure_.Abort(*found.end);
  }
}

void StallWatch::LookAtCall(ProcessSet& set, CollectiveEntry& entry, Limits limits,
                            Findings& found) {
  if (entry.decided.load(std::memory_order_relaxed)) return LookAtRun(set, entry, limits, found);
  if (entry.IsRefusal()) return;
  const int64_t waited = NowNs() - entry.submitted_ns;
  if (waited > limits.warn_ns && !entry.stall_reported) Report(set, entry, waited, found);
  if (limits.end_ns == 0 || waited <= limits.end_ns) return;
  const std::optional<Attendance> attendance = set.AttendanceOf(&entry);
  if (!attendance || attendance->missing.empty()) return;  // it runs
  const std::vector<int>& missing = attendance->missing;
  found.end =
      MakeError(ErrorKind::kTimeout,
                "tensor '" + entry.display_name + "' was not submitted by rank(s) " +
                    RankList(missing) + " within " + Seconds(waited) + stacks_.Lacking(missing),
                missing[0]);
}

// All ranks have submitted the call. A slow collective is no stalled one; of one that is stuck
// nothing goes on here, and no data of any collective come from other hosts.
void StallWatch::LookAtRun(ProcessSet& set, CollectiveEntry& entry, Limits limits,
                           Findings& found) {
  const int64_t now = NowNs();
  const uint64_t moves = set.moves.load(std::memory_order_relaxed) +
                         job_.counters.data_moves.load(std::memory_order_relaxed);
  // While this process itself did not run, it could see nothing.
  const bool away = now - std::exchange(set.moves_looked_ns, now) > kOwnPause;
  if (std::exchange(set.moves_seen, moves) != moves || away) set.moved_ns = now;
  const int64_t still = now - std::max(entry.submitted_ns, set.moved_ns);
  const bool ends = limits.end_ns != 0 && still > limits.end_ns;
  if (still <= limits.warn_ns && !ends) return;
  const std::string text = "tensor '" + entry.display_name +
                           "' was submitted by all ranks, but nothing of it has gone on here for " +
                           Seconds(still) + ": what other ranks send does not arrive";
  if (!std::exchange(entry.stall_reported, true)) found.warnings.push_back(text);
  if (ends) found.end = MakeError(ErrorKind::kTimeout, text);
}

// A join waits for as long as the others have data: it stalls once they do nothing any more either.
void StallWatch::LookAtJoin(ProcessSet& set, Limits limits, Findings& found) {
  if (set.queue.joins.empty()) return;
  const JoinEntry& entry = *set.queue.joins.front();
  const int64_t waited = NowNs() - std::max(entry.submitted_ns, set.queue.join_moved_ns);
  const bool ends = limits.end_ns != 0 && waited > limits.end_ns;
  if (waited <= limits.warn_ns && !ends) return;
  const uint32_t join = set.control->JoinCount(set.context.me);
  if (join % 2 == 0) return;  // not announced yet, or over already
  std::vector<int> joined;
  std::vector<int> missing;
  if (set.multi_host) {
    const std::optional<Attendance> attendance = set.AttendanceOf(nullptr);
    if (!attendance) return;  // not known yet
    joined = attendance->ready;
    missing = attendance->missing;
  } else {
    for (uint32_t r = 0; r < set.context.ranks; ++r)
      (set.control->IsMissingIn(join, r) ? missing : joined).push_back(set.ranks[r]);
  }
  if (missing.empty()) return;
  const std::string name = "'" + entry.display_name + "'";
  const bool tells = TellsForAll(set, joined);
  if (waited > limits.warn_ns && tells &&
      set.control->header().join_stall_told.exchange(join) != join) {
    found.warnings.push_back(name + " has waited for " + Seconds(waited) + ": rank(s) " +
                             RankList(joined) + " have joined, rank(s) " + RankList(missing) +
                             " have not, and submit nothing");
  }
  if (!ends) return;
  found.end = MakeError(ErrorKind::kTimeout,
                        name + " was not called by rank(s) " + RankList(missing) + " within " +
                            Seconds(waited) + " in which they submitted nothing",
                        missing[0]);
}

// The missing ranks of which nothing is known, since a rank that passes on their news is silent.
std::string StallWatch::BehindSilent(const std::vector<int>& missing) const {
  std::map<int, std::vector<int>> behind;
  for (const int rank : missing) {
    const auto silent =
        job_.multi_host ? job_.multi_host->channel().SilentOnTheWay(rank) : std::nullopt;
    if (silent) behind[*silent].push_back(rank);
  }
  std::string text;
  for (const auto& [silent, ranks] : behind) {
    text += "; nothing is known of rank(s) " + RankList(ranks) + ": rank " +
            std::to_string(silent) + ", which passes on their news, gives no sign of life";
  }
  return text;
}

bool StallWatch::TellsForAll(const ProcessSet& set, const std::vector<int>& waiting) const {
  return !set.multi_host || (!waiting.empty() && waiting.front() == job_.rank());
}

// The rank that has waited longest tells, so that a job of many ranks says it once, and in time: a
// lower rank may have submitted the tensor much later.
void StallWatch::Report(const ProcessSet& set, CollectiveEntry& entry, int64_t waited_ns,
                        Findings& found) {
  const std::optional<Attendance> attendance = set.AttendanceOf(&entry);
  if (!attendance) return;  // not known yet, or it runs
  const auto& [ready, missing] = *attendance;
  const bool tells = TellsForAll(set, ready);
  if (tells && !missing.empty() && !stacks_.HasAnswersOf(missing, entry)) return;
  entry.stall_reported = true;
  if (!tells || missing.empty()) return;  // nor will any rank be missing later
  std::atomic<uint64_t>& told = set.control->id(entry.id).stall_told;
  if (told.exchange(entry.generation) == entry.generation) return;
  found.warnings.push_back("tensor '" + entry.display_name + "' has waited for " +
                           Seconds(waited_ns) + ": rank(s) " + RankList(ready) +
                           " are ready, rank(s) " + RankList(missing) + " have not submitted it" +
                           BehindSilent(missing) + stacks_.Describe(missing));
}

// The word in which another rank says what it is blocked on may be old: it may not have been on a
// core since. So the call that would be ended there is read first, then the word, and last that the
// rank has not submitted the tensor here: all three were true when it fell asleep over that call.
void StallWatch::LookForOtherSet(const CollectiveEntry& entry) {
  if (!entry.named || entry.complete.load(std::memory_order_acquire)) return;
  const std::shared_ptr<ProcessSet> here = sets_.Find(entry.process_set);
  // Between hosts no rank sees what the others wait for; Look tells it later.
  if (!here || here->multi_host) return;
  for (uint32_t r = 0; r < here->context.ranks; ++r) {
    const std::atomic<uint64_t>& blocked = job_.control.state(here->control->local(r)).blocked_on;
    const uint64_t blocked_on = blocked.load(std::memory_order_seq_cst);
    if (blocked_on == kNotBlocked) continue;
    const std::shared_ptr<ProcessSet> there = sets_.Find(static_cast<uint32_t>(blocked_on >> 32));
    if (!there || there == here || !there->Has(job_.rank()) || !there->Has(here->ranks[r]) ||
        there->multi_host) {
      continue;
    }
    const auto id = static_cast<uint32_t>(blocked_on);
    if (there->control->Known(entry.name()) != id) continue;
    const auto peer = std::ranges::find(there->ranks, here->ranks[r]) - there->ranks.begin();
    const Arrivals arrivals = there->control->id(id).arrivals.load(std::memory_order_seq_cst);
    const uint64_t open = arrivals.open();
    const Row& row_there = there->control->row(static_cast<uint32_t>(peer), id, open);
    if (arrivals.arrived() == 0 || row_there.generation.load(std::memory_order_seq_cst) != open ||
        blocked.load(std::memory_order_seq_cst) != blocked_on) {
      continue;
    }
    const Row& row_here = here->control->row(r, entry.id, entry.generation);
    if (row_here.generation.load(std::memory_order_seq_cst) == entry.generation) continue;
    if (here->control->HasJoined(r)) continue;
    {
      const std::unique_lock lock(there->queue.mutex, std::try_to_lock);  // see Look
      if (!lock || there->queue.in_flight.Contains(id)) continue;
    }
    const int rank = here->ranks[r];
    const auto side = [](int of, uint32_t set) {
      return "rank " + std::to_string(of) + " has process set " + std::to_string(set);
    };
    const std::string mine = side(job_.rank(), here->id);
    const std::string other = side(rank, there->id);
    const Error error =
        MakeError(ErrorKind::kMismatch,
                  "tensor '" + entry.display_name + "': mismatched process set: " +
                      (job_.rank() < rank ? mine + ", " + other : other + ", " + mine),
                  std::max(rank, job_.rank()));
    Status status = here->controller->Reject({entry.id, entry.generation}, error);
    if (status.ok()) status = there->controller->Reject({id, open}, error);
    if (!status.ok()) failure_.Abort(status.error());
    return;
  }
}

}  // namespace horoacc
