// Calls whose time is over, and what becomes of a process set in which somebody has given up
// waiting.
#include <algorithm>

#include "base/clock.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

constexpr int64_t kAskBefore = kSecond;

std::string SecondsText(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Not in the backlog behind another call of its id.
bool Published(ProcessSet& set, const std::shared_ptr<Entry>& entry) {
  std::lock_guard lock(set.queue.mutex);
  return set.queue.in_flight.Find(entry->id) == entry;
}

}  // namespace

std::string Engine::WhoIsMissing(const ProcessSet& set, const Entry& entry) const {
  std::string missing;
  const std::optional<Attendance> attendance = AttendanceOf(set, entry);
  if (!attendance) return missing;
  for (const int rank : attendance->missing)
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  return missing;
}

Status Engine::GiveUp(uint64_t handle, double seconds) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return MakeError(ErrorKind::kInvalid, "unknown handle " + std::to_string(handle));
  if (entry->complete.load(std::memory_order_acquire)) return entry->outcome;
  return GiveUp(entry, seconds);
}

Error Engine::GiveUp(const std::shared_ptr<Entry>& entry, double seconds) {
  const std::shared_ptr<ProcessSet> set = FindSet(entry->process_set);
  Error error = AnnotateError(TooLate(*entry, seconds), set.get(), entry.get());
  {
    std::lock_guard lock(given_up_mutex_);
    given_up_.emplace_back(entry, error);
    any_given_up_.store(true, std::memory_order_release);
  }
  doorbells_.Ring(share_.local_rank, Urgency::kWork);
  RecordFlight(error.message, true);
  return error;
}

Error Engine::TooLate(const Entry& entry, double seconds) const {
  Error error = MakeError(
      ErrorKind::kTimeout,
      "tensor '" + entry.display_name + "' was not complete within " + SecondsText(seconds) + " s");
  const std::shared_ptr<ProcessSet> set = FindSet(entry.process_set);
  std::string missing;
  if (entry.message) {
    if (entry.message->peer != kAnySource) missing = std::to_string(entry.message->peer);
  } else if (set) {
    missing = WhoIsMissing(*set, entry);
  }
  if (missing.empty()) return error;
  error.message += ": waiting for rank(s) " + missing;
  error.culprit = std::stoi(missing);
  return error;
}

// Calls with a limit of their own.
void Engine::WatchDeadlines() {
  const int64_t now = NowNs();
  for (const auto& set : Sets()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::vector<std::shared_ptr<Entry>> overdue;
    {
      std::lock_guard lock(set->queue.mutex);
      for (const uint32_t id : set->queue.in_flight.ids()) {
        std::shared_ptr<Entry> entry = set->queue.in_flight.Find(id);
        // Between hosts it takes a message to learn whom a call waits for: ask in time.
        if (multi_host_ && entry->deadline_ns - now < kAskBefore) (void)AttendanceOf(*set, *entry);
        if (entry->deadline_ns <= now) overdue.push_back(std::move(entry));
      }
      for (const auto& entry : set->queue.arriving) {
        if (entry->deadline_ns <= now) overdue.push_back(entry);
      }
      for (const auto& join : set->queue.joins) {
        if (join->deadline_ns <= now) overdue.push_back(join);
      }
      for (const auto& entry : overdue)
        entry->deadline_ns = std::numeric_limits<int64_t>::max();  // once is enough
    }
    for (const auto& entry : overdue) (void)GiveUp(entry, entry->limit_seconds);
  }
}

// Whoever waits for the call gets the error of the one who gave up, with the names in it; whatever
// else goes on in the set, or begins later, ends too: ranks that have not all seen the same calls
// cannot go on together.
Status Engine::EndGivenUp() {
  std::vector<std::pair<std::shared_ptr<Entry>, Error>> ended;
  {
    std::lock_guard lock(given_up_mutex_);
    ended.swap(given_up_);
    any_given_up_.store(false, std::memory_order_relaxed);
  }
  for (const auto& [entry, error] : ended) {
    const std::shared_ptr<ProcessSet> set = FindSet(entry->process_set);
    if (!set || entry->complete.load(std::memory_order_acquire)) continue;
    if (entry->message) {
      messages_->Cancel(*entry, error);
    } else if (entry->request.collective == Collective::kJoin) {
      {
        std::lock_guard lock(set->queue.mutex);
        std::erase(set->queue.joins, entry);
      }
      Complete(*set, *entry, error);
    } else if (Published(*set, entry) && !entry->decided) {
      HA_TRY(set->controller->Reject({entry->id, entry->generation}, error));
    }
    HA_TRY(EndSet(*set));
  }
  return {};
}

Status Engine::EndSet(ProcessSet& set) {
  {
    const SetSegment::Guard guard(*set.control);
    HA_TRY(Status(guard.status()));
    SetEnd none;
    set.control->header().end.compare_exchange_strong(none, SetEnd::GaveUp(placement_.rank));
  }
  set.context.ring_others(true);
  return {};
}

}  // namespace horoacc
