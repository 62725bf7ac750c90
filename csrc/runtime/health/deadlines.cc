#include "runtime/health/deadlines.h"

#include <limits>
#include <string>

#include "base/clock.h"
#include "negotiate/disagreement.h"

namespace horoacc {
namespace {

constexpr int64_t kAskBefore = kSecond;

}  // namespace

void Deadlines::Look() {
  const int64_t now = NowNs();
  for (const auto& set : sets_.Own()) {
    if (set->queue.pending.load(std::memory_order_relaxed) == 0) continue;
    std::vector<std::shared_ptr<Entry>> overdue;
    std::vector<std::shared_ptr<Entry>> moot;
    {
      const std::unique_lock lock(set->queue.mutex, std::try_to_lock);  // see StallWatch::Look
      if (!lock) continue;
      const auto look = [&](const std::shared_ptr<Entry>& entry) {
        // Between hosts it takes a message to learn whom a call waits for: ask in time.
        if (set->multi_host && entry->deadline_ns - now < kAskBefore)
          (void)set->AttendanceOf(AsCollective(entry.get()));
        if (CollectiveEntry* const call = AsCollective(entry.get()); call && call->IsMoot()) {
          call->doubts.clear();  // once is enough
          moot.push_back(entry);
        }
        if (entry->deadline_ns > now) return;
        entry->deadline_ns = std::numeric_limits<int64_t>::max();  // once is enough
        overdue.push_back(entry);
      };
      for (const uint32_t id : set->queue.in_flight.ids()) look(set->queue.in_flight.Find(id));
      for (const auto& entry : set->queue.pending_copies) look(entry);
      for (const auto& join : set->queue.joins) look(join);
    }
    for (const auto& entry : overdue) (void)GiveUp(entry, entry->limit_seconds);
    for (const auto& entry : moot) {
      HandToDriver(entry,
                   MakeError(ErrorKind::kInvalid, "the other ranks have left the plan, too"));
    }
  }
}

Error Deadlines::GiveUp(const std::shared_ptr<Entry>& entry, double seconds) {
  const std::shared_ptr<ProcessSet> set = sets_.Find(entry->process_set);
  Error error = failure_.Annotate(TooLate(*entry, seconds), set.get(), entry.get());
  HandToDriver(entry, error);
  telemetry_.RecordFlight(error.message, true);
  return error;
}

void Deadlines::HandToDriver(const std::shared_ptr<Entry>& entry, const Error& error) {
  {
    std::lock_guard lock(mutex_);
    given_up_.emplace_back(entry, error);
    any_.store(true, std::memory_order_release);
  }
  job_.RingOwn(Urgency::kWork);
}

Error Deadlines::TooLate(const Entry& entry, double seconds) const {
  Error error = MakeError(
      ErrorKind::kTimeout,
      "tensor '" + entry.display_name + "' was not complete within " + SecondsText(seconds) + " s");
  std::vector<int> missing;
  if (entry.kind == Entry::Kind::kMessage) {
    const int peer = static_cast<const MessageEntry&>(entry).message.peer;
    if (peer != kAnySource) missing = {peer};
  } else if (const std::shared_ptr<ProcessSet> set = sets_.Find(entry.process_set)) {
    if (std::optional<Attendance> attendance = set->AttendanceOf(AsCollective(&entry)))
      missing = std::move(attendance->missing);
  }
  if (missing.empty()) return error;
  error.culprit = missing[0];
  error.message += ": waiting for rank(s) " + ListText(missing);
  return error;
}

Deadlines::GivenUp Deadlines::TakeAll() {
  std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_relaxed);
  return std::exchange(given_up_, {});
}

}  // namespace horoacc
