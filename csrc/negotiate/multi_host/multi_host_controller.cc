#include "negotiate/multi_host/multi_host_controller.h"

#include <algorithm>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr int64_t kAskAgain = 200 * kMillisecond;

}  // namespace

MultiHostController::MultiHostController(ControlMux& mux, Leader::Place place, SetSegment& control,
                                         const SetContext& context, const Doorbells& doorbells,
                                         EagerRule eager, NoteMemory memory)
    : HostGroup(control, context, doorbells) {
  if (context.me == 0)
    leader_.emplace(mux, std::move(place), *this, control, context, eager, std::move(memory));
}

// Items for the leader.

bool MultiHostController::Put(const OutboxItem& item) {
  if (!control_.outbox().Put(item)) return false;
  if (!leader_) RingMember(0, Ring::kWork);
  return true;
}

Status MultiHostController::PutLocked(const OutboxItem& item, bool& put) {
  {
    const RingingLock lock(*this);
    HA_TRY(Status(lock.status()));
    put = Put(item);
  }
  return Lead();
}

void MultiHostController::OnReady(TensorKey key, bool) {
  control_.id(key.id).last_decision.store(kUndecided, std::memory_order_relaxed);
  (void)Put({.kind = OutboxItem::Kind::kReady, .tensor = key});
}

bool MultiHostController::OnIdle() {
  if (control_.header().joined.load(std::memory_order_relaxed) == 0) return true;
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    Cursor& cursor = control_.cursor(r);
    const uint32_t join = control_.JoinCount(r);
    if (join % 2 == 0 || std::exchange(cursor.join_told, join) == join) continue;
    (void)Put({.kind = OutboxItem::Kind::kJoined, .value = r, .count = cursor.unnamed});
  }
  return true;
}

Result<Announced> MultiHostController::Announce(const Announcement& announcement) {
  HA_ASSIGN(const Announced announced, HostGroup::Announce(announcement));
  if (announced != Announced::kTaken) return announced;
  const TensorKey key{announcement.id, announcement.generation};
  control_.row(context_.me, key.id, key.generation)
      .counted.store(key.generation, std::memory_order_release);
  if (control_.id(key.id).arrivals.load(std::memory_order_acquire).open() == key.generation) {
    std::lock_guard lock(mutex_);
    waiting_.push_back({key, NowNs()});
    any_waiting_.store(true, std::memory_order_relaxed);
  }
  HA_TRY(Lead());
  return announced;
}

Status MultiHostController::Join(uint64_t unnamed) {
  {
    std::lock_guard lock(mutex_);
    joins_ = {};
  }
  HA_TRY(HostGroup::Join(unnamed));
  return Lead();
}

Status MultiHostController::Pump() {
  if (any_waiting_.load(std::memory_order_relaxed)) HA_TRY(TellWaiting());
  if (control_.header().starved.load(std::memory_order_acquire) != 0) {
    const RingingLock lock(*this);
    HA_TRY(Status(lock.status()));
    Decide({});
    if (!leader_ && control_.header().leader_waits != 0) RingMember(0, Ring::kWork);
  }
  for (bool put = true; !rejections_.empty(); rejections_.pop_front()) {
    const auto& [key, error] = rejections_.front();
    HA_TRY(PutLocked({.kind = OutboxItem::Kind::kReject, .tensor = key, .error = error}, put));
    if (!put) break;
  }
  return Lead();
}

// The root is to know for which ranks a call waits, also if others of their hosts are here.
Status MultiHostController::TellWaiting() {
  std::vector<TensorKey> told;
  {
    std::lock_guard lock(mutex_);
    while (!waiting_.empty()) {
      const auto [key, since_ns] = waiting_.front();
      const Arrivals seen = control_.id(key.id).arrivals.load(std::memory_order_acquire);
      if (seen.open() == key.generation) {
        if (NowNs() - since_ns < kSubtreeTimeout) break;
        told.push_back(key);
      }
      waiting_.pop_front();
    }
    if (waiting_.empty()) any_waiting_.store(false, std::memory_order_relaxed);
  }
  bool put = true;
  for (const TensorKey& key : told) {
    HA_TRY(PutLocked({.kind = OutboxItem::Kind::kWaiting, .tensor = key}, put));
    if (put) continue;
    std::lock_guard lock(mutex_);
    waiting_.push_front({key, 0});
    any_waiting_.store(true, std::memory_order_relaxed);
  }
  return {};
}

// The generation of this rank's call of the id that is not in the log.
std::optional<uint64_t> MultiHostController::Undecided(uint32_t id) const {
  const IdEntry& entry = control_.id(id);
  const Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  if (control_.HasSubmitted(context_.me, {id, seen.open()})) return seen.open();
  const bool closed = entry.last_decision.load(std::memory_order_relaxed) == kUndecided &&
                      control_.HasSubmitted(context_.me, {id, seen.over()});
  return closed ? std::optional(seen.over()) : std::nullopt;
}

Status MultiHostController::Unblock(std::span<const uint32_t> in_flight) {
  // Unnamed calls are never part of a bucket. Every waiting rank comes here: no lock for them.
  const auto in_bucket = [&](uint32_t id) {
    return id < kNamedIds && control_.id(id).bucket.load(std::memory_order_relaxed) != 0;
  };
  if (std::ranges::none_of(in_flight, in_bucket)) return {};
  bool any = false;
  {
    const RingingLock lock(*this);
    HA_TRY(Status(lock.status()));
    if (Ended()) return {};
    std::map<uint32_t, std::pair<uint32_t, TensorKey>> touched;  // members submitted here, and one
    for (const uint32_t id : in_flight) {
      const auto generation = in_bucket(id) ? Undecided(id) : std::nullopt;
      if (!generation) continue;
      auto& [members, witness] = touched[control_.id(id).bucket.load(std::memory_order_relaxed)];
      ++members;
      witness = {id, *generation};
    }
    const PlanState& plan = control_.plan();
    for (const auto& [bucket, here] : touched) {
      const auto& [members, witness] = here;
      if (members == plan.buckets[bucket - 1].count) continue;  // whole here
      // Said already, and nothing has changed since. A call that ran directly is no decision of the
      // root's: only the call that waits tells such rounds apart.
      const Split split{control_.header().decided, *plan.version, witness};
      std::lock_guard lock_said(mutex_);
      if (const auto said = splits_.find(bucket); said != splits_.end() && said->second == split)
        continue;
      if (!Put({.kind = OutboxItem::Kind::kSplit,
                .tensor = witness,
                .value = bucket - 1,
                .count = split.decided}))
        break;
      splits_[bucket] = split;
      any = true;
    }
  }
  return any ? Lead() : Status();
}

Status MultiHostController::Reject(TensorKey tensor, const Error& error) {
  rejections_.emplace_back(tensor, error);
  return Pump();
}

Status MultiHostController::End(SetEnd end) {
  if (Ended() || end_asked_.exchange(true)) return {};
  bool put = true;
  return PutLocked({.kind = OutboxItem::Kind::kEnd, .value = static_cast<uint32_t>(end.wire())},
                   put);
}

Status MultiHostController::Release() {
  if (std::exchange(released_, true)) return {};
  {
    const RingingLock lock(*this);
    HA_TRY(Status(lock.status()));
    if (++control_.header().released == context_.ranks)
      (void)Put({.kind = OutboxItem::Kind::kReleased});
  }
  return Lead();
}

// Entries of the log.

Result<std::optional<Decision>> MultiHostController::Next() {
  for (;;) {
    std::optional<DecisionLog::Entry> entry = log_.Next();
    if (!entry) break;
    Decision& decision = entry->decision;
    if (decision.kind == Decision::Kind::kNews) {
      HA_TRY(TakeNews(entry->note));
      continue;
    }
    const bool has_note =
        decision.kind == Decision::Kind::kRun || decision.kind == Decision::Kind::kDrain;
    if (has_note && !TakeNote(BytesOf(entry->note), decision))
      return MakeError(ErrorKind::kSystem, "a decision in shared memory is damaged");
    ++unfinished_;
    return std::optional(std::move(decision));
  }
  if (news_unfinished_ && unfinished_ == 0) {
    news_unfinished_ = false;
    if (control_.FinishUpTo(log_.taken(), std::nullopt)) HA_TRY(Pump());
  }
  return std::optional<Decision>();
}

Status MultiHostController::Finish(const Decision& decision) {
  --unfinished_;
  return HostGroup::Finish(decision);
}

Status MultiHostController::TakeNews(const LogNote& note) {
  news_unfinished_ = true;
  std::optional<AttendanceNews> news = horoacc::TakeNews(BytesOf(note));
  if (!news) return MakeError(ErrorKind::kSystem, "an answer in shared memory is damaged");
  std::lock_guard lock(mutex_);
  if (!news->tensor) {
    joins_.attendance = std::move(news->attendance);
  } else if (const auto asked = answers_.find(news->tensor->id);
             asked != answers_.end() && asked->second.generation == news->tensor->generation) {
    asked->second.attendance = std::move(news->attendance);
  }
  return {};
}

Result<std::optional<Attendance>> MultiHostController::WhoHas(std::optional<TensorKey> tensor) {
  if (Ended()) return std::optional<Attendance>();
  std::optional<Attendance> known;
  {
    std::lock_guard lock(mutex_);
    Answer& answer = tensor ? answers_[tensor->id] : joins_;
    if (tensor && answer.generation != tensor->generation) answer = {0, tensor->generation, {}};
    const int64_t now = NowNs();
    if (now - answer.asked_ns < kAskAgain) return answer.attendance;
    answer.asked_ns = now;
    known = answer.attendance;
  }
  bool put = true;
  HA_TRY(PutLocked({.kind = tensor ? OutboxItem::Kind::kAsk : OutboxItem::Kind::kAskJoin,
                    .tensor = tensor.value_or(TensorKey{})},
                   put));
  return known;
}

}  // namespace horoacc
