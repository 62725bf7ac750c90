// Who is dead, and who keeps the others waiting.
#include <poll.h>

#include <algorithm>

#include "base/clock.h"
#include "runtime/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kLookAtPeersEvery = 100 * kMillisecond;
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
    const uint32_t phase = board_.state(local).phase.load(std::memory_order_acquire);
    return static_cast<RankPhase>(phase) == RankPhase::kLeft;
  };
  if (left(share_.local_rank)) return;
  for (size_t l = 0; l < share_.ranks.size(); ++l) {
    if (static_cast<int>(l) == share_.local_rank || !share_.pidfds[l]) continue;
    pollfd watched{share_.pidfds[l]->get(), POLLIN, 0};
    if (::poll(&watched, 1, 0) <= 0) continue;
    if (left(l)) continue;
    const int rank = share_.ranks[l];
    Abort(MakeError(ErrorKind::kPeerLost,
                    "rank " + std::to_string(rank) + " died without shutting down", rank));
    return;
  }
}

void Engine::WatchStalls() {
  if (settings_.stall_check_disable) return;
  const int64_t now = NowNs();
  const auto warn_after = static_cast<int64_t>(settings_.stall_warning_seconds * 1e9);
  const auto end_after = static_cast<int64_t>(settings_.stall_shutdown_seconds * 1e9);
  for (const auto& set : Sets()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::lock_guard lock(set->queue.mutex);
    for (const uint32_t id : set->queue.in_flight.ids()) {
      const std::shared_ptr<Entry> entry = set->queue.in_flight.Find(id);
      const int64_t waited = now - entry->submitted_ns;
      if (waited > warn_after && !entry->stall_reported) ReportStall(*set, *entry, waited);
      if (end_after == 0 || waited <= end_after) continue;
      std::vector<int> missing;
      for (uint32_t r = 0; r < set->context.ranks; ++r) {
        const Row& row = set->board->row(r, id, entry->generation);
        if (row.generation.load(std::memory_order_acquire) != entry->generation)
          missing.push_back(set->ranks[r]);
      }
      if (missing.empty()) continue;  // it runs; a slow collective is not a stalled one
      Abort(MakeError(ErrorKind::kTimeout,
                      "tensor '" + entry->shown_name + "' was not submitted by rank(s) " +
                          RankList(missing) + " within " + std::to_string(waited / kSecond) + " s",
                      missing[0]));
      return;
    }
  }
}

// Two ranks that wait for a tensor of one name in different process sets, each for the other, wait
// for ever: they disagree about the set. Both sets get the error.
//
// What the other rank has said of itself may be old: it may not have been on a core since. So the
// call that would be ended there comes first, then what the rank waits for, and what it has not
// submitted here comes last: all three were true when it fell asleep over that call.
void Engine::WatchProcessSets(const Entry& entry) {
  if (entry.name.empty() || entry.complete.load(std::memory_order_acquire)) return;
  const std::shared_ptr<ProcessSet> here = FindSet(entry.process_set);
  for (uint32_t r = 0; here && r < here->context.ranks; ++r) {
    const std::atomic<uint64_t>& blocked = board_.state(here->board->local(r)).blocked_on;
    const uint64_t blocked_on = blocked.load(std::memory_order_seq_cst);
    if (blocked_on == kNotBlocked) continue;
    const std::shared_ptr<ProcessSet> there = FindSet(static_cast<uint32_t>(blocked_on >> 32));
    if (!there || there == here) continue;
    const auto id = static_cast<uint32_t>(blocked_on);
    const auto peer = std::ranges::find(there->ranks, here->ranks[r]);
    const bool member = std::ranges::find(there->ranks, placement_.rank) != there->ranks.end();
    if (!member || peer == there->ranks.end() || there->board->Known(entry.name) != id) continue;

    const uint64_t arrivals = there->board->id(id).arrivals.load(std::memory_order_seq_cst);
    const uint64_t open = (arrivals >> 16 & 0xffffffff) + 1;
    const Row& row_there =
        there->board->row(static_cast<uint32_t>(peer - there->ranks.begin()), id, open);
    if ((arrivals & 0xffff) == 0 || row_there.generation.load(std::memory_order_seq_cst) != open ||
        blocked.load(std::memory_order_seq_cst) != blocked_on) {
      continue;
    }
    const Row& row_here = here->board->row(r, entry.id, entry.generation);
    if (row_here.generation.load(std::memory_order_seq_cst) == entry.generation) continue;
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
                                  "tensor '" + entry.shown_name + "': mismatched process set: " +
                                      (lower ? mine + ", " + other : other + ", " + mine),
                                  std::max(rank, placement_.rank));
    Status status = here->plane->Reject({entry.id, entry.generation}, error);
    if (status.ok()) status = there->plane->Reject({id, open}, error);
    if (!status.ok()) Abort(status.error());
    return;
  }
}

// The lowest rank that is ready tells, so that a job of many ranks says it once.
void Engine::ReportStall(const ProcessSet& set, Entry& entry, int64_t waited_ns) {
  entry.stall_reported = true;
  std::vector<int> ready;
  std::vector<int> missing;
  for (uint32_t r = 0; r < set.context.ranks; ++r) {
    const Row& row = set.board->row(r, entry.id, entry.generation);
    const bool has_it = row.generation.load(std::memory_order_acquire) == entry.generation;
    (has_it ? ready : missing).push_back(set.ranks[r]);
  }
  if (missing.empty() || ready.empty() || ready[0] != placement_.rank) return;
  log_.Write(LogLevel::kWarning, "tensor '" + entry.shown_name + "' has waited for " +
                                     std::to_string(waited_ns / kSecond) + " s: rank(s) " +
                                     RankList(ready) + " are ready, rank(s) " + RankList(missing) +
                                     " have not submitted it");
}

}  // namespace horoacc
