#include "negotiate/board_plane.h"

#include <algorithm>
#include <cstring>

namespace horoacc {
namespace {

// A decision in the log: this header, then `ids` ids; an error goes on with
// their generations (two words each) and its text.
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
constexpr uint64_t kArrivalMask = 0xffff;
constexpr size_t kLongestText = 2048;

}  // namespace

BoardPlane::BoardPlane(SetBoard& board, const SetContext& context, const Bells& bells,
                       const Settings& settings, std::vector<int> global_ranks)
    : board_(board),
      context_(context),
      bells_(bells),
      decider_(board, context, settings),
      global_ranks_(std::move(global_ranks)),
      taken_(board.header().log_words.load(std::memory_order_acquire)) {}

Status BoardPlane::Announce(const Announcement& announcement) {
  // Nothing is decided any more; the driver fails the call.
  if (board_.header().gone.load(std::memory_order_acquire) != 0) return {};
  IdEntry& entry = board_.id(announcement.id);
  uint64_t arrivals = entry.arrivals.load(std::memory_order_acquire);
  std::optional<SetBoard::Guard> guard;
  for (;;) {
    if (arrivals >> 48 != announcement.incarnation ||
        (arrivals >> 16 & 0xffffffff) + 1 != announcement.generation) {
      return MakeError(ErrorKind::kAborted, "the id or its generation has moved on", kLookUpAgain);
    }
    const bool last = (arrivals & kArrivalMask) + 1 == context_.ranks;
    // Under the lock, or the id would seem to rest before it is decided.
    if (last && !guard) {
      guard.emplace(board_);
      HA_TRY(Status(guard->status()));
    }
    // The last arrival opens the next generation.
    const uint64_t next = last ? (arrivals & ~kArrivalMask) + (kArrivalMask + 1) : arrivals + 1;
    if (!entry.arrivals.compare_exchange_weak(arrivals, next, std::memory_order_acq_rel)) continue;
    if (last) Decide({&announcement.id, 1});
    return {};
  }
}

// Members that run already do not count: what a caller waits for may be a part of a bucket whose
// other part is complete, and that says nothing about the bucket's next round.
Status BoardPlane::Unblock(std::span<const uint32_t> in_flight) {
  SetBoard::Guard guard(board_);
  HA_TRY(Status(guard.status()));
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
  SetBoard::Guard guard(board_);
  HA_TRY(Status(guard.status()));
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
  decision.slot = static_cast<uint64_t>(header.slot_high) << 32 | header.slot_low;
  decision.error = static_cast<ErrorKind>(header.error);
  decision.culprit = header.culprit;
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
  return board_.id(id).arrivals.load(std::memory_order_acquire) >> 16 & 0xffffffff;
}

void BoardPlane::Decide(std::span<const uint32_t> ready) {
  SetHeader& header = board_.header();
  uint32_t* backlog = board_.backlog();
  for (const uint32_t id : ready) backlog[header.backlog++] = id;
  for (;;) {
    uint32_t decided = 0;
    while (decided < header.backlog && HasRoom()) DecideOne(backlog[decided++]);
    std::copy(backlog + decided, backlog + header.backlog, backlog);
    header.backlog -= decided;
    if (header.backlog == 0) break;
    if (board_.Starve()) RingMembers({}, true);  // whoever lags has to catch up
    if (!HasRoom()) return;
  }
  header.starved.store(0, std::memory_order_relaxed);
}

void BoardPlane::DecideOne(uint32_t id) {
  const TensorKey key{id, GenerationOf(id)};
  if (const Error disagreement = CompareRows(board_, context_, global_ranks_, key);
      disagreement.kind != ErrorKind::kOk) {
    PublishError(key, disagreement);
    return;
  }
  const Row& lowest = board_.row(0, id, key.generation);
  const bool fusable =
      id < kNamedIds && lowest.collective == static_cast<uint8_t>(Collective::kAllreduce);
  const ReadyItem item{id, lowest.sequence, lowest.pause, BytesOf(board_, context_, key), fusable};
  for (const Bucket& bucket : TakeReady(board_.plan(), {&item, 1})) PublishRun(bucket);
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
  entry.flags = (decision.done ? kDoneFlag : 0) | (decision.shared ? kSharedFlag : 0);
  entry.slot_low = static_cast<uint32_t>(decision.slot);
  entry.slot_high = static_cast<uint32_t>(decision.slot >> 32);
  entry.ids = static_cast<uint32_t>(decision.ids.size());
  entry.error = static_cast<uint32_t>(decision.error);
  entry.culprit = decision.culprit;
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
  RingMembers(keys, decision.kind == Decision::Kind::kRun && !decision.done);
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
    bells_.Ring(static_cast<int>(board_.local(r)),
                work || notify ? Urgency::kWork : Urgency::kQuiet);
  }
}

}  // namespace horoacc
