#pragma once
// The entries of one process set that are in flight on this rank.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "negotiate/control_segment/segment_layout.h"
#include "queue/entry.h"
#include "queue/names.h"

namespace horoacc {

/// Entries in flight: found by id at once, and walked through without looking at every id.
class InFlight {
 public:
  [[nodiscard]] bool Contains(uint32_t id) const {
    return id < by_id_.size() && by_id_[id] != nullptr;
  }
  [[nodiscard]] std::shared_ptr<CollectiveEntry> Find(uint32_t id) const {
    return Contains(id) ? by_id_[id] : nullptr;
  }
  void Insert(std::shared_ptr<CollectiveEntry> entry) {
    if (entry->id >= by_id_.size()) by_id_.resize(entry->id + 1);
    entry->place = static_cast<uint32_t>(ids_.size());
    ids_.push_back(entry->id);
    by_id_[entry->id] = std::move(entry);
  }
  /// Does nothing if the id is not this entry's: it waits in the backlog behind another one.
  void Erase(const CollectiveEntry& entry) {
    if (!Contains(entry.id) || by_id_[entry.id].get() != &entry) return;
    const uint32_t id = entry.id;
    const uint32_t place = entry.place;
    ids_[place] = ids_.back();
    by_id_[ids_[place]]->place = place;
    ids_.pop_back();
    by_id_[id] = nullptr;
  }
  [[nodiscard]] const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  std::vector<std::shared_ptr<CollectiveEntry>> by_id_;
  std::vector<uint32_t> ids_;
};

/// Guarded by `mutex` unless said otherwise.
struct SetQueue {
  std::mutex mutex;
  Names names;
  InFlight in_flight;
  /// Submitted, but its id is still in flight for an earlier call: published when that ends.
  std::deque<std::shared_ptr<CollectiveEntry>> backlog;
  /// Submitted, and the first of them waits for a copy from a GPU; published in this order.
  std::deque<std::shared_ptr<CollectiveEntry>> pending_copies;
  /// Calls of join that wait until all ranks have joined. While there are any this rank submits
  /// nothing else.
  std::vector<std::shared_ptr<JoinEntry>> joins;
  /// The latest, until something else is submitted: a caller whose wait was cancelled asks for it.
  std::shared_ptr<JoinOver> join_over;
  bool join_announced = false;  ///< once the backlog was empty
  /// When this rank last saw the others go on while it had joined.
  int64_t join_moved_ns = 0;
  uint64_t unnamed = 0;     ///< unnamed calls submitted
  uint64_t sequence = 0;    ///< entries published
  uint32_t sync_round = 0;  ///< times a caller waited for a result of this set
  /// The process set takes no calls any more. Written under the mutex.
  std::atomic<bool> removed{false};
  /// Entries in flight, in the backlog, or with copies pending; read without the mutex.
  std::atomic<uint32_t> pending{0};
  /// The same of all sets on several hosts that this rank leads; null if this is none of them.
  std::atomic<uint32_t>* led = nullptr;

  /// Of these, the ones for which somebody waits.
  [[nodiscard]] uint32_t Awaited() const {
    const auto refuses = [](const auto& entry) { return entry->IsRefusal(); };
    const auto refusals = std::ranges::count_if(backlog, refuses) +
                          std::ranges::count_if(in_flight.ids(), [&](uint32_t id) {
                            return refuses(in_flight.Find(id));
                          });
    return pending.load() - static_cast<uint32_t>(refusals);
  }

  /// Counts an entry. True if there was none.
  bool Enter() {
    if (led) led->fetch_add(1, std::memory_order_relaxed);
    return pending.fetch_add(1, std::memory_order_relaxed) == 0;
  }
  void Leave() {
    if (led) led->fetch_sub(1, std::memory_order_relaxed);
    pending.fetch_sub(1, std::memory_order_relaxed);
  }
};

}  // namespace horoacc
