#pragma once
// The entries of one process set that are in flight on this rank.
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "negotiate/board.h"
#include "queue/entry.h"

namespace horoacc {

/// Entries in flight: found by id at once, and walked through without looking at every id.
class InFlight {
 public:
  [[nodiscard]] bool Contains(uint32_t id) const {
    return id < by_id_.size() && by_id_[id] != nullptr;
  }
  [[nodiscard]] std::shared_ptr<Entry> Find(uint32_t id) const {
    return Contains(id) ? by_id_[id] : nullptr;
  }
  void Insert(std::shared_ptr<Entry> entry) {
    if (entry->id >= by_id_.size()) by_id_.resize(entry->id + 1);
    entry->place = static_cast<uint32_t>(ids_.size());
    ids_.push_back(entry->id);
    by_id_[entry->id] = std::move(entry);
  }
  void Erase(uint32_t id) {
    if (!Contains(id)) return;
    const uint32_t place = by_id_[id]->place;
    ids_[place] = ids_.back();
    by_id_[ids_[place]]->place = place;
    ids_.pop_back();
    by_id_[id] = nullptr;
  }
  [[nodiscard]] const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  std::vector<std::shared_ptr<Entry>> by_id_;
  std::vector<uint32_t> ids_;
};

/// Guarded by `mutex` unless said otherwise.
struct SetQueue {
  std::mutex mutex;
  std::unordered_map<std::string, NameRecord> names;
  InFlight in_flight;
  /// Submitted, but its id is still in flight for an earlier call: published when that ends.
  std::deque<std::shared_ptr<Entry>> backlog;
  uint64_t unnamed = 0;   ///< unnamed calls submitted
  uint64_t sequence = 0;  ///< entries published
  uint32_t pause = 0;     ///< times a caller waited for a result of this set
  std::atomic<uint32_t> pending{
      0};  ///< entries in flight or in the backlog; read without the mutex
};

}  // namespace horoacc
