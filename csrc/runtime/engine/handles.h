#pragma once
// Handles: how the framework asks after a call.
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "queue/entry.h"

namespace horoacc {

/// Thread-safe map of handle numbers to entries.
class Handles {
 public:
  uint64_t Add(const std::shared_ptr<Entry>& entry) {
    std::lock_guard lock(mutex_);
    entry->handle = ++last_;
    entries_.emplace(entry->handle, entry);
    return entry->handle;
  }
  [[nodiscard]] std::shared_ptr<Entry> Find(uint64_t handle) const {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle);
    return found == entries_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Entry> Remove(uint64_t handle) {
    std::lock_guard lock(mutex_);
    const auto node = entries_.extract(handle);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> entries_;
};

}  // namespace horoacc
