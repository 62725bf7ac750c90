#pragma once
// Hashes of states, for searches that follow no state twice.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "negotiate/control_segment/set_segment.h"

namespace horoacc::model {

class StateHash {
 public:
  void Mix(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15ull;
    state_ ^= state_ >> 29;
  }
  void Mix(std::string_view text) {
    Mix(text.size());
    for (const char c : text) Mix(static_cast<uint64_t>(c));
  }
  [[nodiscard]] uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x243f6a8885a308d3ull;
};

/// Of the ids from `first` on that have names, and of the first four of unnamed calls.
/// `runs`: what ranks have carried out, and the gates of runs, count.
[[nodiscard]] inline uint64_t DigestOf(const SetSegment& set, uint32_t first, bool runs = false) {
  StateHash hash;
  const SetHeader& header = set.header();
  hash.Mix(static_cast<uint64_t>(header.end.load().wire()) << 32 | header.joined.load());
  hash.Mix(static_cast<uint64_t>(header.ids) << 32 | header.backlog);
  hash.Mix(header.decided << 32 | header.released << 1 | header.all_released.load());
  const auto mix_id = [&](uint32_t id) {
    const IdEntry& entry = set.id(id);
    const Arrivals arrivals = entry.arrivals.load();
    if (arrivals == Arrivals() && entry.name_length == 0) return;
    uint64_t word = 0;
    std::memcpy(&word, &arrivals, sizeof word);
    hash.Mix(word);
    hash.Mix(entry.name_hash + id);
    hash.Mix(entry.last_decision.load());
    hash.Mix(entry.bucket.load());
    for (uint32_t r = 0; r < set.ranks(); ++r) {
      for (const uint64_t parity : {0, 1}) {
        const Row& row = set.row(r, id, parity);
        hash.Mix(row.generation.load() << 32 | row.sequence << 16 | row.number << 8 |
                 row.sync_round);
      }
    }
  };
  for (uint32_t id = first; id < header.ids; ++id) mix_id(id);
  for (uint32_t id = 0; id < 4; ++id) mix_id(kNamedIds + id);
  for (uint32_t r = 0; r < set.ranks(); ++r) {
    const Cursor& cursor = set.cursor(r);
    hash.Mix(cursor.joined.load() << 16 | cursor.join_told << 8 | cursor.unnamed);
    if (runs) hash.Mix(cursor.words.load());
  }
  for (uint64_t slot = 0; runs && slot < header.slots; ++slot) hash.Mix(set.slot(slot).gate.load());
  // The outbox can only be read by taking its items, which are put in again.
  for (const OutboxItem& item : set.outbox().TakeAll()) {
    hash.Mix(static_cast<uint64_t>(item.kind) << 32 | item.tensor.id);
    hash.Mix(item.tensor.generation);
    hash.Mix(static_cast<uint64_t>(item.value) << 32 | item.count);
    hash.Mix(item.error.message);
    if (!set.outbox().Put(item)) std::abort();
  }
  return hash.value();
}

}  // namespace horoacc::model
