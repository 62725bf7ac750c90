#pragma once
// The one event stream. Every step of a tensor's path emits one event; sinks (the timeline, tests)
// attach to the engine that owns the stream.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/flight_ring.h"

namespace horoacc {

enum class Phase : uint8_t {
  kQueued,      ///< the framework submitted the tensor; value = bytes of the call
  kNegotiated,  ///< all ranks have it; a decision names it
  kExecute,     ///< its bucket starts to run here; detail = path, value = bytes of the bucket
  kExecuted,    ///< its result lies in the output
  kReleased,    ///< the handle is complete
  kError,       ///< it failed; detail = message
};

struct Event {
  Phase phase;
  int64_t time_ns;
  uint32_t process_set;
  uint64_t handle;
  uint64_t bucket;  ///< index of the decision in its set, 0 before there is one
  uint64_t value;
  std::string_view tensor;
  std::string_view detail;
  std::optional<DType> type{};  ///< of kQueued
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  /// Called by any thread of the rank; must be quick and thread-safe.
  virtual void On(const Event& event) = 0;
};

/// Sinks of one engine, and the ring in which the latest events are kept.
class EventStream {
 public:
  /// `slots`: room in the ring.
  explicit EventStream(size_t slots = 0) : ring_(slots) {}
  void Attach(std::shared_ptr<EventSink> sink) {
    std::lock_guard lock(mutex_);
    sinks_.push_back(std::move(sink));
    active_.store(true, std::memory_order_release);
  }
  void Detach(const EventSink* sink) {
    std::lock_guard lock(mutex_);
    std::erase_if(sinks_, [&](const auto& held) { return held.get() == sink; });
    active_.store(!sinks_.empty(), std::memory_order_release);
  }
  [[nodiscard]] bool active() const { return active_.load(std::memory_order_relaxed); }
  /// Frees the ring's memory.
  void Forget() { ring_.Forget(); }
  [[nodiscard]] const FlightRing& ring() const { return ring_; }
  /// A caller was blocked for `ns` in the call of which the ring has the slot `call`.
  void Waited(uint64_t call, int64_t ns) {
    if (ring_.on()) ring_.AddWait(call, ns);
  }

  /// `call`: the result for the call's first event, or 0. Returns the event's number in the ring; 0
  /// if it is not kept, or was added to the call's slot.
  uint64_t Emit(Phase phase, uint32_t process_set, uint64_t handle, uint64_t bucket, uint64_t value,
                std::string_view tensor, std::string_view detail = {}, uint64_t call = 0,
                std::optional<DType> type = {}) {
    // Of a successful call these two phases add nothing to the others.
    const bool kept = ring_.on() && phase != Phase::kExecute && phase != Phase::kReleased;
    if (!kept && !active()) return 0;
    Event event{phase, 0, process_set, handle, bucket, value, tensor, detail, type};
    uint64_t number = 0;
    if (kept && !ring_.Add(call, event)) number = ring_.Write(event);
    if (!active()) return number;
    event.time_ns = NowNs();
    std::lock_guard lock(mutex_);
    for (const auto& sink : sinks_) sink->On(event);
    return number;
  }

 private:
  FlightRing ring_;
  std::atomic<bool> active_{false};
  std::mutex mutex_;
  std::vector<std::shared_ptr<EventSink>> sinks_;
};

}  // namespace horoacc
