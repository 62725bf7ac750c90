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

/// What this rank knows of a name: its id (looked up on the board once) and who holds it.
struct NameRecord {
  uint32_t id = 0;
  uint32_t incarnation = 0;
  bool known = false;     ///< id and incarnation are valid
  uint64_t held_by = 0;   ///< handle that reserves the name until it is released; 0: none
};

/// Guarded by `mutex` unless said otherwise.
struct SetQueue {
  std::mutex mutex;
  std::unordered_map<std::string, NameRecord> names;
  std::unordered_map<uint32_t, std::shared_ptr<Entry>> in_flight;  ///< by id
  /// Submitted, but its id is still in flight for an earlier call: published when that ends.
  std::deque<std::shared_ptr<Entry>> backlog;
  uint64_t unnamed = 0;   ///< unnamed calls submitted
  uint64_t sequence = 0;  ///< entries published
  uint32_t pause = 0;     ///< times a caller waited for a result of this set
  std::atomic<uint32_t> pending{0};  ///< entries in flight or in the backlog; read without the mutex
};

}  // namespace horoacc
