#pragma once
// Handles: how the framework asks after a call.
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "queue/entry.h"

namespace horoacc {

/// Thread-safe map of handle numbers to entries. Handles are numbered one after the other, so that
/// a page holds many of them; it is freed with the last one on it.
class Handles {
 public:
  uint64_t Add(const std::shared_ptr<Entry>& entry) {
    std::lock_guard lock(mutex_);
    entry->handle = ++last_;
    if (!newest_ || entry->handle % kPerPage == 0) {
      if (newest_ && newest_->held == 0) pages_.erase((entry->handle - 1) / kPerPage);
      newest_ = &pages_[entry->handle / kPerPage];
    }
    newest_->entries[entry->handle % kPerPage] = entry;
    ++newest_->held;
    return entry->handle;
  }
  [[nodiscard]] std::shared_ptr<Entry> Find(uint64_t handle) const {
    std::lock_guard lock(mutex_);
    const auto page = pages_.find(handle / kPerPage);
    return page == pages_.end() ? nullptr : page->second.entries[handle % kPerPage];
  }
  std::shared_ptr<Entry> Remove(uint64_t handle) {
    std::lock_guard lock(mutex_);
    const auto page = pages_.find(handle / kPerPage);
    if (page == pages_.end()) return nullptr;
    auto entry = std::exchange(page->second.entries[handle % kPerPage], nullptr);
    if (entry && --page->second.held == 0 && &page->second != newest_) pages_.erase(page);
    return entry;
  }

 private:
  static constexpr uint64_t kPerPage = 256;
  struct Page {
    std::array<std::shared_ptr<Entry>, kPerPage> entries;
    uint32_t held = 0;
  };

  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, Page> pages_;
  Page* newest_ = nullptr;  ///< the page of `last_`; it stays while nothing is on it
};

}  // namespace horoacc
