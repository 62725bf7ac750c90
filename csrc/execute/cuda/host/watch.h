#pragma once
// Polling: a GPU wakes no thread.
#include <atomic>
#include <cstdint>

namespace horoacc::cuda {

/// While it is set, the engine's threads ask the GPU now and then, and do not sleep long.
class Watch {
 public:
  explicit Watch(std::atomic<uint32_t>& polling) : polling_(polling) {}
  ~Watch() { Set(false); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  void Set(bool on) {
    if (on != on_) polling_.fetch_add(on ? 1 : -1U, std::memory_order_relaxed);
    on_ = on;
  }

 private:
  std::atomic<uint32_t>& polling_;
  bool on_ = false;
};

}  // namespace horoacc::cuda
