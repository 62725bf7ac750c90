#include "negotiate/control_segment/host_group.h"

namespace horoacc {
namespace {

// An item of the backlog that may be ready without the ranks that have joined.
constexpr uint32_t kCandidate = 1u << 31;

}  // namespace

HostGroup::HostGroup(SetSegment& control, const SetContext& context, const Doorbells& doorbells)
    : control_(control),
      context_(context),
      log_(control),
      doorbells_(doorbells),
      rings_(context.ranks, Ring::kNo) {}

Result<Announced> HostGroup::Announce(const Announcement& announcement) {
  if (Ended()) return Announced::kTaken;  // nothing is decided any more; the driver fails the call
  IdEntry& entry = control_.id(announcement.id);
  Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  std::optional<RingingLock> lock;
  for (;;) {
    if (!seen.Admits(announcement.id_version, announcement.generation))
      return Announced::kLookUpAgain;
    const Arrivals next = seen.Arrive(context_.ranks);
    const bool last = next.arrived() == 0;
    // Under the lock, or the id would seem to rest before it is decided.
    if (last && !lock) {
      lock.emplace(*this);
      HA_TRY(Status(lock->status()));
    }
    // Here and in Join both sides write and then look, in one total order.
    if (!entry.arrivals.compare_exchange_weak(seen, next, std::memory_order_seq_cst)) continue;
    if (last) {
      Decide({&announcement.id, 1});
    } else if (control_.header().joined.load(std::memory_order_seq_cst) > 0) {
      if (!lock) lock.emplace(*this);
      HA_TRY(Status(lock->status()));
      Consider(announcement.id);
      Decide({});
    }
    return Announced::kTaken;
  }
}

Status HostGroup::Join(uint64_t unnamed) {
  if (Ended()) return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  SetHeader& header = control_.header();
  Cursor& own = control_.cursor(context_.me);
  own.unnamed = unnamed;
  own.joined.fetch_add(1, std::memory_order_release);
  header.last_joined = context_.me;
  header.joined.fetch_add(1, std::memory_order_seq_cst);
  // Calls that waited only for this rank are complete now.
  for (uint32_t id = 0; id < kIds; ++id) {
    if (id == header.ids) id = std::max(id, kNamedIds);
    if (control_.id(id).arrivals.load(std::memory_order_seq_cst).arrived() > 0) Consider(id);
  }
  Decide({});
  return {};
}

Status HostGroup::Pump() {
  if (control_.header().starved.load(std::memory_order_acquire) == 0) return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  Decide({});
  return {};
}

Result<std::optional<Decision>> HostGroup::Next() {
  std::optional<DecisionLog::Entry> entry = log_.Next();
  if (!entry) return std::optional<Decision>();
  return std::optional<Decision>(std::move(entry->decision));
}

Status HostGroup::Finish(const Decision& decision) {
  const bool ran = decision.kind == Decision::Kind::kRun && !decision.done();
  const auto slots = ran ? std::optional<uint64_t>(decision.slot + 1) : std::nullopt;
  return control_.FinishUpTo(decision.end, slots) ? Pump() : Status();
}

uint64_t HostGroup::GenerationOf(uint32_t id) const {
  return control_.id(id).arrivals.load(std::memory_order_acquire).over();
}

void HostGroup::Decide(std::span<const uint32_t> ready) {
  SetHeader& header = control_.header();
  uint32_t* backlog = control_.backlog();
  for (const uint32_t id : ready) backlog[header.backlog++] = id;
  for (bool told = false;; told = true) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < header.backlog; ++k) {
      if (!HasRoom() || !TakeItem(backlog[k])) backlog[kept++] = backlog[k];
    }
    header.backlog = kept;
    if (kept == 0 && OnIdle()) break;
    if (told) return;
    // The ranks that lag have to catch up. One may have done so before it was rung.
    if (control_.Starve()) RingMembers({}, true);
  }
  header.starved.store(header.leader_waits, std::memory_order_relaxed);
}

// Puts an id that may be ready into the backlog, where TakeItem finds out.
void HostGroup::Consider(uint32_t id) {
  SetHeader& header = control_.header();
  uint32_t* const end = control_.backlog() + header.backlog;
  if (std::find(control_.backlog(), end, id | kCandidate) != end) return;
  control_.backlog()[header.backlog++] = id | kCandidate;
}

// False if it has to wait for a rank that lags.
bool HostGroup::TakeItem(uint32_t item) {
  const uint32_t id = item & ~kCandidate;
  const bool partial = item != id;
  std::atomic<Arrivals>& arrivals = control_.id(id).arrivals;
  if (partial) {
    const Arrivals seen = arrivals.load(std::memory_order_seq_cst);
    const TensorKey open{id, seen.open()};
    uint32_t submitted = 0;
    bool lags = false;
    for (uint32_t r = 0; r < context_.ranks; ++r) {
      if (control_.HasSubmitted(r, open)) {
        ++submitted;
      } else if (!control_.HasJoined(r)) {
        return true;  // it waits for that rank, which will consider it again
      } else {
        lags = lags || control_.Lags(r, {id, seen.over()});
      }
    }
    // A rank that has a row and is not counted is about to be, and considers the id then.
    if (seen.arrived() == 0 || submitted != seen.arrived()) return true;
    if (lags) return false;
    // No rank is left that could arrive.
    arrivals.store(seen.Closed(), std::memory_order_seq_cst);
  }
  OnReady({id, GenerationOf(id)}, partial);
  return true;
}

void HostGroup::ResetJoins() {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    Cursor& cursor = control_.cursor(r);
    if (cursor.joined.load(std::memory_order_relaxed) % 2 == 1)
      cursor.joined.fetch_add(1, std::memory_order_relaxed);
  }
  control_.header().joined.store(0, std::memory_order_relaxed);
}

void HostGroup::Publish(const Decision& decision, std::span<const TensorKey> keys,
                        const LogNote& note) {
  (void)log_.Append(decision, note);
  const bool runs = decision.kind == Decision::Kind::kRun && !decision.done();
  RingMembers(keys, runs || decision.kind == Decision::Kind::kJoin);
}

void HostGroup::RingMembers(std::span<const TensorKey> keys, bool work) {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    const auto notify = [&](const TensorKey& key) {
      return control_.row(r, key.id, key.generation).notify.load(std::memory_order_relaxed) != 0;
    };
    RingMember(r, work || std::ranges::any_of(keys, notify) ? Ring::kWork : Ring::kQuiet);
  }
}

HostGroup::RingingLock::~RingingLock() {
  const auto ring = [this](std::vector<Ring>& rings) {
    for (uint32_t r = 0; r < rings.size(); ++r) {
      const Ring how = std::exchange(rings[r], Ring::kNo);
      if (how == Ring::kNo) continue;
      group_.doorbells_.Ring(static_cast<int>(group_.control_.local(r)),
                             how == Ring::kWork ? Urgency::kWork : Urgency::kQuiet);
    }
  };
  std::vector<Ring> rings;
  if (guard_->status().ok() &&
      std::ranges::any_of(group_.rings_, [](Ring r) { return r != Ring::kNo; })) {
    try {
      rings = std::exchange(group_.rings_, std::vector<Ring>(group_.rings_.size(), Ring::kNo));
    } catch (const std::bad_alloc&) {
      ring(group_.rings_);  // who wakes may have to wait for the lock
    }
  }
  guard_.reset();
  ring(rings);
}

}  // namespace horoacc
