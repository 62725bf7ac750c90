#include "negotiate/control_segment/segment_controller.h"

#include <algorithm>
#include <cstring>

namespace horoacc {
namespace {

// A decision in the log: this header, then `ids` ids; an error goes on with their generations (two
// words each) and its text. A join has its last rank for a culprit, and the unnamed calls for a
// slot.
struct LogHeader {
  uint32_t words;
  uint32_t kind;
  uint32_t flags;
  uint32_t slot_low, slot_high;
  uint32_t ids;
  uint32_t error;
  int32_t culprit;
  uint32_t text_bytes;
};
constexpr uint32_t kHeaderWords = sizeof(LogHeader) / sizeof(uint32_t);
constexpr uint32_t kSharedFlag = 1;
constexpr uint32_t kPartialFlag = 2;
constexpr int kPathShift = 8;
// An item of the backlog that may be ready without the ranks that have joined.
constexpr uint32_t kCandidate = 1u << 31;
constexpr size_t kLongestText = 2048;

}  // namespace

SegmentController::SegmentController(SetSegment& control, const SetContext& context,
                                     const Doorbells& doorbells, const Settings& settings,
                                     std::vector<int> global_ranks)
    : control_(control),
      context_(context),
      doorbells_(doorbells),
      decider_(control, context, settings, global_ranks),
      global_ranks_(std::move(global_ranks)),
      rings_(context.ranks, Ring::kNo),
      taken_(control.header().log_words.load(std::memory_order_acquire)) {}

Result<Announced> SegmentController::Announce(const Announcement& announcement) {
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

Status SegmentController::Join(uint64_t unnamed) {
  if (Ended()) return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  SetHeader& header = control_.header();
  Cursor& own = control_.cursor(context_.me);
  own.unnamed = unnamed;
  own.joined.fetch_add(1, std::memory_order_release);
  header.last_joined = global_ranks_[context_.me];
  header.joined.fetch_add(1, std::memory_order_seq_cst);
  // Calls that waited only for this rank are complete now.
  for (uint32_t id = 0; id < kIds; ++id) {
    if (id == header.ids) id = std::max(id, kNamedIds);
    if (control_.id(id).arrivals.load(std::memory_order_seq_cst).arrived() > 0) Consider(id);
  }
  Decide({});
  return {};
}

// Members that run already do not count: the call for which a caller waits may be a part of a
// bucket whose other part is complete, and that says nothing about the bucket's next round.
Status SegmentController::Unblock(std::span<const uint32_t> in_flight) {
  // Unnamed calls are never part of a bucket. Every waiting rank comes here: no lock for them.
  if (std::ranges::none_of(in_flight, [](uint32_t id) { return id < kNamedIds; })) return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  PlanState& plan = control_.plan();
  std::vector<std::pair<uint32_t, uint32_t>> touched;  // bucket, members of it submitted here
  for (const uint32_t id : in_flight) {
    const PlanItem& item = plan.items[id];
    if (item.bucket == 0) continue;
    const uint64_t open = GenerationOf(id) + 1;
    const Row& row = control_.row(context_.me, id, open);
    if (!item.waiting && row.generation.load(std::memory_order_acquire) != open) continue;
    const auto found =
        std::ranges::find(touched, item.bucket, &std::pair<uint32_t, uint32_t>::first);
    if (found == touched.end()) {
      touched.emplace_back(item.bucket, 1);
    } else {
      ++found->second;
    }
  }
  for (const auto& [bucket, members] : touched) {
    const PlanBucket& state = plan.buckets[bucket - 1];
    // Whole here: others complete it. (A bucket that lost a member may be whole and unstarted.)
    if (members == state.count && state.waiting < state.count) continue;
    if (state.waiting == 0 && state.split) continue;
    // The caller goes on waiting and asks again.
    if (control_.header().backlog > 0 || !HasRoom()) return {};
    if (const Bucket ready = SplitBucket(plan, bucket); !ready.empty()) PublishRun(ready);
  }
  return {};
}

Status SegmentController::Pump() {
  if (control_.header().starved.load(std::memory_order_acquire) == 0 && rejections_.empty())
    return {};
  const RingingLock lock(*this);
  HA_TRY(Status(lock.status()));
  Decide({});
  for (; !rejections_.empty() && HasRoom(); rejections_.pop_front())
    RejectNow(rejections_.front().first, rejections_.front().second);
  return {};
}

Result<std::optional<Decision>> SegmentController::Next() {
  if (taken_ == control_.header().log_words.load(std::memory_order_acquire))
    return std::optional<Decision>();
  LogHeader header;
  for (uint32_t word = 0; word < kHeaderWords; ++word) {
    reinterpret_cast<uint32_t*>(&header)[word] = control_.log_word(taken_ + word);
  }
  Decision decision;
  decision.kind = static_cast<Decision::Kind>(header.kind);
  decision.path = static_cast<Path>(header.flags >> kPathShift);
  decision.shared = header.flags & kSharedFlag;
  decision.partial = header.flags & kPartialFlag;
  decision.slot = static_cast<uint64_t>(header.slot_high) << 32 | header.slot_low;
  decision.error.kind = static_cast<ErrorKind>(header.error);
  decision.error.culprit = header.culprit;
  if (decision.kind == Decision::Kind::kJoin) {
    decision.last_joined = std::exchange(decision.error.culprit, -1);
    decision.unnamed = std::exchange(decision.slot, 0);
  }
  uint64_t at = taken_ + kHeaderWords;
  decision.ids.reserve(header.ids);
  for (uint32_t k = 0; k < header.ids; ++k) decision.ids.push_back(control_.log_word(at++));
  if (decision.kind == Decision::Kind::kError) {
    for (uint32_t k = 0; k < header.ids; ++k, at += 2) {
      decision.generations.push_back(static_cast<uint64_t>(control_.log_word(at + 1)) << 32 |
                                     control_.log_word(at));
    }
  }
  for (uint32_t byte = 0; byte < header.text_bytes; ++byte) {
    decision.error.message.push_back(
        static_cast<char>(control_.log_word(at + byte / 4) >> (8 * (byte % 4))));
  }
  taken_ += header.words;
  decision.end = taken_;
  return std::optional<Decision>(std::move(decision));
}

Status SegmentController::Reject(TensorKey tensor, const Error& error) {
  rejections_.emplace_back(tensor, error);
  return Pump();
}

void SegmentController::RejectNow(TensorKey key, const Error& error) {
  if (!control_.CloseGeneration(key.id, key.generation)) return;
  PublishError(key, error);
}

Status SegmentController::Finish(const Decision& decision) {
  const bool ran = decision.kind == Decision::Kind::kRun && !decision.done();
  const auto slots = ran ? std::optional<uint64_t>(decision.slot + 1) : std::nullopt;
  return control_.FinishUpTo(decision.end, slots) ? Pump() : Status();
}

bool SegmentController::HasRoom() const {
  const SetHeader& header = control_.header();
  const uint64_t used =
      header.log_words.load(std::memory_order_relaxed) - control_.LeastWordsFinished();
  // One id can bring a whole bucket, in two parts or as errors, and an error of its own.
  constexpr uint64_t kWorstCase = 3 * kIds + 4096;
  return kLogWords - used > kWorstCase && decider_.HasSlots();
}

uint64_t SegmentController::GenerationOf(uint32_t id) const {
  return control_.id(id).arrivals.load(std::memory_order_acquire).over();
}

void SegmentController::Decide(std::span<const uint32_t> ready) {
  SetHeader& header = control_.header();
  uint32_t* backlog = control_.backlog();
  for (const uint32_t id : ready) backlog[header.backlog++] = id;
  for (bool told = false;; told = true) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < header.backlog; ++k) {
      if (!HasRoom() || !DecideOne(backlog[k])) backlog[kept++] = backlog[k];
    }
    header.backlog = kept;
    if (kept == 0 && EndJoin()) break;
    if (told) return;
    // The ranks that lag have to catch up. One may have done so before it was rung.
    if (control_.Starve()) RingMembers({}, true);
  }
  header.starved.store(0, std::memory_order_relaxed);
}

// Puts an id that may be ready into the backlog, where DecideOne finds out.
void SegmentController::Consider(uint32_t id) {
  SetHeader& header = control_.header();
  uint32_t* const end = control_.backlog() + header.backlog;
  if (std::find(control_.backlog(), end, id | kCandidate) != end) return;
  control_.backlog()[header.backlog++] = id | kCandidate;
}

// False if it has to wait for a rank that lags.
bool SegmentController::DecideOne(uint32_t item) {
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
        lags = lags || control_.Lags(r, open);
      }
    }
    // A rank that has a row and is not counted is about to be, and considers the id then.
    if (seen.arrived() == 0 || submitted != seen.arrived()) return true;
    if (lags) return false;
    // No rank is left that could arrive.
    arrivals.store(seen.Closed(), std::memory_order_seq_cst);
  }
  const TensorKey key{id, GenerationOf(id)};
  const Error refusal = decider_.Refusal(key, partial ? RanksOf(control_, key) : context_.present);
  if (refusal.kind != ErrorKind::kOk) {
    PublishError(key, refusal);
    return true;
  }
  if (partial) {
    // Its bucket goes on without it: ranks that take part in the others may not in this one.
    Publish(decider_.RunPartial(key), {&key, 1});
    if (const Bucket rest = SkipItem(control_.plan(), id); !rest.empty()) PublishRun(rest);
    return true;
  }
  const ReadyItem ready = decider_.ItemOf(key);
  for (const Bucket& bucket : TakeReady(control_.plan(), {&ready, 1})) PublishRun(bucket);
  return true;
}

// Once all ranks have joined, and all their calls are decided, they submit again. False if there is
// no room in the log.
bool SegmentController::EndJoin() {
  SetHeader& header = control_.header();
  if (header.joined.load(std::memory_order_relaxed) < context_.ranks) return true;
  PlanState& plan = control_.plan();
  for (uint32_t index = 1; index <= *plan.bucket_count; ++index) {
    if (plan.buckets[index - 1].waiting == 0) continue;
    if (!HasRoom()) return false;
    PublishRun(SplitBucket(plan, index));
  }
  if (!HasRoom()) return false;
  Decision join;
  join.kind = Decision::Kind::kJoin;
  join.last_joined = header.last_joined;
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    Cursor& cursor = control_.cursor(r);
    join.unnamed = std::max(join.unnamed, cursor.unnamed);
    cursor.joined.fetch_add(1, std::memory_order_relaxed);
  }
  header.joined.store(0, std::memory_order_relaxed);
  Publish(join, {});
  return true;
}

void SegmentController::PublishRun(const Bucket& bucket) {
  std::vector<TensorKey> keys;
  for (const uint32_t id : bucket) keys.push_back({id, GenerationOf(id)});
  for (const Decision& decision : decider_.Run(keys)) Publish(decision, keys);
}

void SegmentController::PublishError(TensorKey key, const Error& error) {
  Publish(ErrorDecision({&key, 1}, error), {&key, 1});
  if (const Bucket rest = SkipItem(control_.plan(), key.id); !rest.empty()) PublishRun(rest);
}

void SegmentController::Publish(const Decision& decision, std::span<const TensorKey> keys) {
  LogHeader entry{};
  entry.kind = static_cast<uint32_t>(decision.kind);
  const bool join = decision.kind == Decision::Kind::kJoin;
  const uint64_t slot = join ? decision.unnamed : decision.slot;
  entry.flags = static_cast<uint32_t>(decision.path) << kPathShift |
                (decision.shared ? kSharedFlag : 0) | (decision.partial ? kPartialFlag : 0);
  entry.slot_low = static_cast<uint32_t>(slot);
  entry.slot_high = static_cast<uint32_t>(slot >> 32);
  entry.ids = static_cast<uint32_t>(decision.ids.size());
  entry.error = static_cast<uint32_t>(decision.error.kind);
  entry.culprit = join ? decision.last_joined : decision.error.culprit;
  entry.text_bytes = static_cast<uint32_t>(std::min(decision.error.message.size(), kLongestText));
  entry.words = kHeaderWords + entry.ids + static_cast<uint32_t>(2 * decision.generations.size()) +
                (entry.text_bytes + 3) / 4;
  std::vector<uint32_t> words(entry.words);
  std::memcpy(words.data(), &entry, sizeof entry);
  uint32_t* at = std::ranges::copy(decision.ids, words.data() + kHeaderWords).out;
  for (const uint64_t generation : decision.generations) {
    *at++ = static_cast<uint32_t>(generation);
    *at++ = static_cast<uint32_t>(generation >> 32);
  }
  for (uint32_t byte = 0; byte < entry.text_bytes; ++byte) {
    at[byte / 4] |= static_cast<uint32_t>(static_cast<unsigned char>(decision.error.message[byte]))
                    << (8 * (byte % 4));
  }
  const uint64_t end = control_.header().log_words.load(std::memory_order_relaxed) + entry.words;
  for (const uint32_t id : decision.ids)
    control_.id(id).last_decision.store(end, std::memory_order_relaxed);
  Append(words);
  RingMembers(keys, join || (decision.kind == Decision::Kind::kRun && !decision.done()));
}

void SegmentController::Append(std::span<const uint32_t> words) {
  SetHeader& header = control_.header();
  uint64_t at = header.log_words.load(std::memory_order_relaxed);
  for (const uint32_t word : words) control_.log_word(at++) = word;
  header.log_words.store(at, std::memory_order_release);
}

void SegmentController::RingMembers(std::span<const TensorKey> keys, bool work) {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    const bool notify = std::ranges::any_of(keys, [&](const TensorKey& key) {
      return control_.row(r, key.id, key.generation).notify != 0;
    });
    rings_[r] = std::max(rings_[r], work || notify ? Ring::kWork : Ring::kQuiet);
  }
}

SegmentController::RingingLock::~RingingLock() {
  std::vector<Ring> rings;
  if (guard_->status().ok() &&
      std::ranges::any_of(controller_.rings_, [](Ring r) { return r != Ring::kNo; }))
    rings =
        std::exchange(controller_.rings_, std::vector<Ring>(controller_.rings_.size(), Ring::kNo));
  guard_.reset();
  for (uint32_t r = 0; r < rings.size(); ++r) {
    if (rings[r] == Ring::kNo) continue;
    controller_.doorbells_.Ring(static_cast<int>(controller_.control_.local(r)),
                                rings[r] == Ring::kWork ? Urgency::kWork : Urgency::kQuiet);
  }
}

}  // namespace horoacc
