#pragma once
// GPUs wake nobody.
#include <atomic>
#include <cstdint>

namespace horoacc::cuda {

/// Somebody has to ask the GPU now and then, for as long as this says so.
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
