#include "negotiate/control_segment/decision_log.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace horoacc {
namespace {

// An entry: this header, then `ids` ids; an error goes on with their generations (two words each)
// and its text. A join has its last rank for a culprit, and the unnamed calls for a slot.
struct LogHeader {
  uint32_t words;
  uint32_t kind;
  uint32_t flags;
  uint32_t slot_low, slot_high;
  uint32_t run_low, run_high;
  uint32_t ids;
  uint32_t error;
  int32_t culprit;
  uint32_t text_bytes;
  uint32_t note_low, note_high, note_bytes;
};
constexpr uint32_t kHeaderWords = sizeof(LogHeader) / sizeof(uint32_t);
constexpr uint32_t kSharedFlag = 1;
constexpr uint32_t kPartialFlag = 2;
constexpr int kPathShift = 8;

uint64_t Join(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }

}  // namespace

std::optional<DecisionLog::Entry> DecisionLog::Next() {
  if (taken_ == control_.header().log_words.load(std::memory_order_acquire)) return std::nullopt;
  LogHeader header;
  for (uint32_t word = 0; word < kHeaderWords; ++word)
    reinterpret_cast<uint32_t*>(&header)[word] = control_.log_word(taken_ + word);
  Entry entry;
  Decision& decision = entry.decision;
  decision.kind = static_cast<Decision::Kind>(header.kind);
  decision.path = static_cast<Path>(header.flags >> kPathShift);
  decision.shared = header.flags & kSharedFlag;
  decision.partial = header.flags & kPartialFlag;
  decision.slot = Join(header.slot_low, header.slot_high);
  decision.run = Join(header.run_low, header.run_high);
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
    for (uint32_t k = 0; k < header.ids; ++k, at += 2)
      decision.generations.push_back(Join(control_.log_word(at), control_.log_word(at + 1)));
  }
  for (uint32_t byte = 0; byte < header.text_bytes; ++byte) {
    decision.error.message.push_back(
        static_cast<char>(control_.log_word(at + byte / 4) >> (8 * (byte % 4))));
  }
  entry.note = {Join(header.note_low, header.note_high), header.note_bytes};
  taken_ += header.words;
  decision.end = taken_;
  return entry;
}

uint64_t DecisionLog::Append(const Decision& decision, const LogNote& note) {
  LogHeader entry{};
  const bool join = decision.kind == Decision::Kind::kJoin;
  const uint64_t slot = join ? decision.unnamed : decision.slot;
  entry.kind = static_cast<uint32_t>(decision.kind);
  entry.flags = static_cast<uint32_t>(decision.path) << kPathShift |
                (decision.shared ? kSharedFlag : 0) | (decision.partial ? kPartialFlag : 0);
  entry.slot_low = static_cast<uint32_t>(slot);
  entry.slot_high = static_cast<uint32_t>(slot >> 32);
  entry.run_low = static_cast<uint32_t>(decision.run);
  entry.run_high = static_cast<uint32_t>(decision.run >> 32);
  entry.ids = static_cast<uint32_t>(decision.ids.size());
  entry.error = static_cast<uint32_t>(decision.error.kind);
  entry.culprit = join ? decision.last_joined : decision.error.culprit;
  entry.text_bytes = static_cast<uint32_t>(std::min(decision.error.message.size(), kLongestText));
  entry.note_low = static_cast<uint32_t>(note.offset);
  entry.note_high = static_cast<uint32_t>(note.offset >> 32);
  entry.note_bytes = static_cast<uint32_t>(note.bytes);
  const size_t generations =
      decision.kind == Decision::Kind::kError ? 2 * decision.generations.size() : 0;
  entry.words =
      kHeaderWords + entry.ids + static_cast<uint32_t>(generations) + (entry.text_bytes + 3) / 4;
  std::vector<uint32_t> words(entry.words);
  std::memcpy(words.data(), &entry, sizeof entry);
  uint32_t* at = std::ranges::copy(decision.ids, words.data() + kHeaderWords).out;
  for (size_t k = 0; k < generations / 2; ++k) {
    *at++ = static_cast<uint32_t>(decision.generations[k]);
    *at++ = static_cast<uint32_t>(decision.generations[k] >> 32);
  }
  for (uint32_t byte = 0; byte < entry.text_bytes; ++byte) {
    at[byte / 4] |= static_cast<uint32_t>(static_cast<unsigned char>(decision.error.message[byte]))
                    << (8 * (byte % 4));
  }
  SetHeader& header = control_.header();
  uint64_t end = header.log_words.load(std::memory_order_relaxed);
  for (const uint32_t word : words) control_.log_word(end++) = word;
  for (const uint32_t id : decision.ids)
    control_.id(id).last_decision.store(end, std::memory_order_relaxed);
  header.log_words.store(end, std::memory_order_release);
  return end;
}

bool DecisionLog::HasRoom() const {
  const uint64_t used =
      control_.header().log_words.load(std::memory_order_relaxed) - control_.LeastWordsFinished();
  // One id can bring a whole bucket, in two parts or as errors, and an error of its own.
  constexpr uint64_t kWorstCase = 3 * kIds + 4096;
  const bool slots = control_.header().slots + 8 - control_.LeastSlotsFinished() < kExecSlots;
  return slots && kLogWords - used > kWorstCase;
}

}  // namespace horoacc
