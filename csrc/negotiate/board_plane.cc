#include "negotiate/board_plane.h"

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
constexpr uint32_t kDoneFlag = 1;
constexpr uint32_t kSharedFlag = 2;
constexpr uint32_t kPartialFlag = 4;
// An item of the backlog that may be ready without the ranks that have joined.
constexpr uint32_t kCandidate = 1u << 31;
constexpr size_t kLongestText = 2048;

}  // namespace

BoardPlane::BoardPlane(SetBoard& board, const SetContext& context, const Bells& bells,
                       const Settings& settings, std::vector<int> global_ranks)
    : board_(board),
      context_(context),
      bells_(bells),
      decider_(board, context, settings),
      global_ranks_(std::move(global_ranks)),
      rings_(context.ranks, Ring::kNo),
      taken_(board.header().log_words.load(std::memory_order_acquire)) {}

Result<Announced> BoardPlane::Announce(const Announcement& announcement) {
  if (Ended()) return Announced::kTaken;  // nothing is decided any more; the driver fails the call
  IdEntry& entry = board_.id(announcement.id);
  Arrivals seen = entry.arrivals.load(std::memory_order_acquire);
  std::optional<Turn> turn;
  for (;;) {
    if (seen.incarnation() != announcement.incarnation || seen.open() != announcement.generation)
      return Announced::kLookUpAgain;
    const bool last = seen.arrived() + 1 == context_.ranks;
    // Under the lock, or the id would seem to rest before it is decided.
    if (last && !turn) {
      turn.emplace(*this);
      HA_TRY(Status(turn->status()));
    }
    const Arrivals next = last ? seen.Closed() : seen.OneMore();
    // Here and in Join both sides write and then look, in one total order.
    if (!entry.arrivals.compare_exchange_weak(seen, next, std::memory_order_seq_cst)) continue;
    if (last) {
      Decide({&announcement.id, 1});
    } else if (board_.header().joined.load(std::memory_order_seq_cst) > 0) {
      if (!turn) turn.emplace(*this);
      HA_TRY(Status(turn->status()));
      Consider(announcement.id);
      Decide({});
    }
    return Announced::kTaken;
  }
}

Status BoardPlane::Join(uint64_t unnamed) {
  if (Ended()) return {};
  const Turn turn(*this);
  HA_TRY(Status(turn.status()));
  SetHeader& header = board_.header();
  Cursor& own = board_.cursor(context_.me);
  own.unnamed = unnamed;
  own.joined.fetch_add(1, std::memory_order_release);
  header.last_joined = global_ranks_[context_.me];
  header.joined.fetch_add(1, std::memory_order_seq_cst);
  // What has waited for this rank alone waits for nobody now.
  for (uint32_t id = 0; id < kIds; ++id) {
    if (id == header.ids) id = std::max(id, kNamedIds);
    if (board_.id(id).arrivals.load(std::memory_order_seq_cst).arrived() > 0) Consider(id);
  }
  Decide({});
  return {};
}

// Members that run already do not count: what a caller waits for may be a part of a bucket whose
// other part is complete, and that says nothing about the bucket's next round.
Status BoardPlane::Unblock(std::span<const uint32_t> in_flight) {
  // Unnamed calls are never part of a bucket. This way every waiting rank comes: no lock for them.
  if (std::ranges::none_of(in_flight, [](uint32_t id) { return id < kNamedIds; })) return {};
  const Turn turn(*this);
  HA_TRY(Status(turn.status()));
  PlanState& plan = board_.plan();
  std::vector<std::pair<uint32_t, uint32_t>> touched;  // bucket, members of it submitted here
  for (const uint32_t id : in_flight) {
    const PlanItem& item = plan.items[id];
    if (item.bucket == 0) continue;
    const uint64_t open = GenerationOf(id) + 1;
    const Row& row = board_.row(context_.me, id, open);
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
    if (board_.header().backlog > 0 || !HasRoom()) return {};
    if (const Bucket ready = SplitBucket(plan, bucket); !ready.empty()) PublishRun(ready);
  }
  return {};
}

Status BoardPlane::Pump() {
  if (board_.header().starved.load(std::memory_order_acquire) == 0 && rejections_.empty())
    return {};
  const Turn turn(*this);
  HA_TRY(Status(turn.status()));
  Decide({});
  for (; !rejections_.empty() && HasRoom(); rejections_.pop_front())
    RejectNow(rejections_.front().first, rejections_.front().second);
  return {};
}

Result<std::optional<Decision>> BoardPlane::Next() {
  if (taken_ == board_.header().log_words.load(std::memory_order_acquire))
    return std::optional<Decision>();
  LogHeader header;
  for (uint32_t word = 0; word < kHeaderWords; ++word) {
    reinterpret_cast<uint32_t*>(&header)[word] = board_.log_word(taken_ + word);
  }
  Decision decision;
  decision.kind = static_cast<Decision::Kind>(header.kind);
  decision.done = header.flags & kDoneFlag;
  decision.shared = header.flags & kSharedFlag;
  decision.partial = header.flags & kPartialFlag;
  decision.slot = static_cast<uint64_t>(header.slot_high) << 32 | header.slot_low;
  decision.error = static_cast<ErrorKind>(header.error);
  decision.culprit = header.culprit;
  if (decision.kind == Decision::Kind::kJoin) {
    decision.last_joined = std::exchange(decision.culprit, -1);
    decision.unnamed = std::exchange(decision.slot, 0);
  }
  uint64_t at = taken_ + kHeaderWords;
  decision.ids.reserve(header.ids);
  for (uint32_t k = 0; k < header.ids; ++k) decision.ids.push_back(board_.log_word(at++));
  if (decision.kind == Decision::Kind::kError) {
    for (uint32_t k = 0; k < header.ids; ++k, at += 2) {
      decision.generations.push_back(static_cast<uint64_t>(board_.log_word(at + 1)) << 32 |
                                     board_.log_word(at));
    }
  }
  for (uint32_t byte = 0; byte < header.text_bytes; ++byte) {
    decision.text.push_back(static_cast<char>(board_.log_word(at + byte / 4) >> (8 * (byte % 4))));
  }
  taken_ += header.words;
  decision.end = taken_;
  return std::optional<Decision>(std::move(decision));
}

Status BoardPlane::Reject(TensorKey tensor, const Error& error) {
  rejections_.emplace_back(tensor, error);
  return Pump();
}

void BoardPlane::RejectNow(TensorKey key, const Error& error) {
  if (!board_.CloseGeneration(key.id, key.generation)) return;
  PublishError(key, error);
}

Status BoardPlane::Finish(const Decision& decision) {
  const bool ran = decision.kind == Decision::Kind::kRun && !decision.done;
  const auto slots = ran ? std::optional<uint64_t>(decision.slot + 1) : std::nullopt;
  return board_.FinishUpTo(decision.end, slots) ? Pump() : Status();
}

bool BoardPlane::HasRoom() const {
  const SetHeader& header = board_.header();
  const uint64_t used =
      header.log_words.load(std::memory_order_relaxed) - board_.LeastWordsFinished();
  // One id can bring a whole bucket, in two parts or as errors, and an error of its own.
  constexpr uint64_t kWorstCase = 3 * kIds + 4096;
  return kLogWords - used > kWorstCase && decider_.HasSlots();
}

uint64_t BoardPlane::GenerationOf(uint32_t id) const {
  return board_.id(id).arrivals.load(std::memory_order_acquire).over();
}

void BoardPlane::Decide(std::span<const uint32_t> ready) {
  SetHeader& header = board_.header();
  uint32_t* backlog = board_.backlog();
  for (const uint32_t id : ready) backlog[header.backlog++] = id;
  for (bool told = false;; told = true) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < header.backlog; ++k) {
      if (!HasRoom() || !DecideOne(backlog[k])) backlog[kept++] = backlog[k];
    }
    header.backlog = kept;
    if (kept == 0 && EndJoin()) break;
    if (told) return;
    // Whoever lags has to catch up. It may have before it was told.
    if (board_.Starve()) RingMembers({}, true);
  }
  header.starved.store(0, std::memory_order_relaxed);
}

// An id of which nobody knows whether it is ready: in the backlog DecideOne finds out.
void BoardPlane::Consider(uint32_t id) {
  SetHeader& header = board_.header();
  uint32_t* const end = board_.backlog() + header.backlog;
  if (std::find(board_.backlog(), end, id | kCandidate) != end) return;
  board_.backlog()[header.backlog++] = id | kCandidate;
}

// False if it has to wait for a rank that lags.
bool BoardPlane::DecideOne(uint32_t item) {
  const uint32_t id = item & ~kCandidate;
  const bool partial = item != id;
  std::atomic<Arrivals>& arrivals = board_.id(id).arrivals;
  if (partial) {
    const Arrivals seen = arrivals.load(std::memory_order_seq_cst);
    const TensorKey open{id, seen.open()};
    uint32_t submitted = 0;
    bool lags = false;
    for (uint32_t r = 0; r < context_.ranks; ++r) {
      if (board_.HasSubmitted(r, open)) {
        ++submitted;
      } else if (!board_.HasJoined(r)) {
        return true;  // it waits for that rank, which will consider it again
      } else {
        lags = lags || board_.Lags(r, open);
      }
    }
    // Who has a row and is not counted is about to be, and considers it then.
    if (seen.arrived() == 0 || submitted != seen.arrived()) return true;
    if (lags) return false;
    // Nobody is left who could arrive.
    arrivals.store(seen.Closed(), std::memory_order_seq_cst);
  }
  const TensorKey key{id, GenerationOf(id)};
  if (const SetEnd end = Ended()) {
    // Not a word of the rows: their ranks may have given up what they refer to.
    PublishError(key, EndOfSet(end));
    return true;
  }
  const std::vector<uint32_t> present = partial ? RanksOf(board_, key) : context_.present;
  Error refusal = CompareRows(board_, context_, global_ranks_, key, present);
  if (partial && refusal.kind == ErrorKind::kOk) refusal = NeedsJoined(board_, global_ranks_, key);
  if (refusal.kind != ErrorKind::kOk) {
    PublishError(key, refusal);
    return true;
  }
  if (partial) {
    // Its bucket goes on without it: ranks that take part in the others may not in this one.
    Publish(decider_.RunPartial(key), {&key, 1});
    if (const Bucket rest = SkipItem(board_.plan(), id); !rest.empty()) PublishRun(rest);
    return true;
  }
  const Row& lowest = board_.row(0, key.id, key.generation);
  const bool fusable =
      id < kNamedIds && lowest.collective == static_cast<uint8_t>(Collective::kAllreduce);
  const ReadyItem ready{id, lowest.sequence, lowest.pause, BytesOf(board_, context_, key), fusable};
  for (const Bucket& bucket : TakeReady(board_.plan(), {&ready, 1})) PublishRun(bucket);
  return true;
}

// Once all ranks have joined, and what they had submitted is decided, they submit again. False if
// there is no room in the log.
bool BoardPlane::EndJoin() {
  SetHeader& header = board_.header();
  if (header.joined.load(std::memory_order_relaxed) < context_.ranks) return true;
  PlanState& plan = board_.plan();
  for (uint32_t index = 1; index <= *plan.bucket_count; ++index) {
    if (plan.buckets[index - 1].waiting == 0) continue;
    if (!HasRoom()) return false;
    PublishRun(SplitBucket(plan, index));
  }
  if (!HasRoom()) return false;
  Decision join;
  join.kind = Decision::Kind::kJoin;
  join.done = true;
  join.last_joined = header.last_joined;
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    Cursor& cursor = board_.cursor(r);
    join.unnamed = std::max(join.unnamed, cursor.unnamed);
    cursor.joined.fetch_add(1, std::memory_order_relaxed);
  }
  header.joined.store(0, std::memory_order_relaxed);
  Publish(join, {});
  return true;
}

void BoardPlane::PublishRun(const Bucket& bucket) {
  std::vector<TensorKey> keys;
  for (const uint32_t id : bucket) keys.push_back({id, GenerationOf(id)});
  for (const Decision& decision : decider_.Run(keys)) Publish(decision, keys);
}

void BoardPlane::PublishError(TensorKey key, const Error& error) {
  Publish(ErrorDecision({&key, 1}, error), {&key, 1});
  if (const Bucket rest = SkipItem(board_.plan(), key.id); !rest.empty()) PublishRun(rest);
}

void BoardPlane::Publish(const Decision& decision, std::span<const TensorKey> keys) {
  LogHeader entry{};
  entry.kind = static_cast<uint32_t>(decision.kind);
  const bool join = decision.kind == Decision::Kind::kJoin;
  const uint64_t slot = join ? decision.unnamed : decision.slot;
  entry.flags = (decision.done ? kDoneFlag : 0) | (decision.shared ? kSharedFlag : 0) |
                (decision.partial ? kPartialFlag : 0);
  entry.slot_low = static_cast<uint32_t>(slot);
  entry.slot_high = static_cast<uint32_t>(slot >> 32);
  entry.ids = static_cast<uint32_t>(decision.ids.size());
  entry.error = static_cast<uint32_t>(decision.error);
  entry.culprit = join ? decision.last_joined : decision.culprit;
  entry.text_bytes = static_cast<uint32_t>(std::min(decision.text.size(), kLongestText));
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
    at[byte / 4] |= static_cast<uint32_t>(static_cast<unsigned char>(decision.text[byte]))
                    << (8 * (byte % 4));
  }
  const uint64_t end = board_.header().log_words.load(std::memory_order_relaxed) + entry.words;
  for (const uint32_t id : decision.ids)
    board_.id(id).last_decision.store(end, std::memory_order_relaxed);
  Append(words);
  RingMembers(keys, join || (decision.kind == Decision::Kind::kRun && !decision.done));
}

void BoardPlane::Append(std::span<const uint32_t> words) {
  SetHeader& header = board_.header();
  uint64_t at = header.log_words.load(std::memory_order_relaxed);
  for (const uint32_t word : words) board_.log_word(at++) = word;
  header.log_words.store(at, std::memory_order_release);
}

void BoardPlane::RingMembers(std::span<const TensorKey> keys, bool work) {
  for (uint32_t r = 0; r < context_.ranks; ++r) {
    const bool notify = std::ranges::any_of(keys, [&](const TensorKey& key) {
      return board_.row(r, key.id, key.generation).notify != 0;
    });
    rings_[r] = std::max(rings_[r], work || notify ? Ring::kWork : Ring::kQuiet);
  }
}

BoardPlane::Turn::~Turn() {
  std::vector<Ring> rings;
  if (guard_->status().ok() &&
      std::ranges::any_of(plane_.rings_, [](Ring r) { return r != Ring::kNo; }))
    rings = std::exchange(plane_.rings_, std::vector<Ring>(plane_.rings_.size(), Ring::kNo));
  guard_.reset();
  for (uint32_t r = 0; r < rings.size(); ++r) {
    if (rings[r] == Ring::kNo) continue;
    plane_.bells_.Ring(static_cast<int>(plane_.board_.local(r)),
                       rings[r] == Ring::kWork ? Urgency::kWork : Urgency::kQuiet);
  }
}

}  // namespace horoacc
