#pragma once
// The engines in whose arenas a framework's tensors may lie, for the framework's allocator.
#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>

#include "api/horoacc.h"

namespace horoacc {

/// Only the arenas of these engines are asked, which outlive them. Those in which nothing lies any
/// more leave the list, but are not freed: another thread may be walking it.
class KnownEngines {
 public:
  /// One caller at a time.
  void Add(ha_engine* engine) {
    // A thread that is at a removed entry still reaches the older ones from there.
    std::atomic<Known*>* place = &newest_;
    while (Known* const known = place->load(std::memory_order_acquire)) {
      if (known->engine == engine) return;
      if (ha_arena_over(known->engine) != 0) {
        place->store(known->older.load(std::memory_order_acquire), std::memory_order_release);
        known->removed_before = std::exchange(removed_, known);
      } else {
        place = &known->older;
      }
    }
    newest_.store(new Known(engine, newest_.load(std::memory_order_acquire)),
                  std::memory_order_release);
  }

  /// Frees a block if an engine's arena contains it.
  bool Free(void* memory) const {
    for (const Known* known = newest_.load(std::memory_order_acquire); known;
         known = known->older.load(std::memory_order_acquire)) {
      if (!ha_arena_contains(known->engine, memory)) continue;
      ha_arena_free(known->engine, memory);
      return true;
    }
    return false;
  }

 private:
  struct Known {
    Known(ha_engine* what, Known* before) : engine(what), older(before) {}
    ha_engine* const engine;
    std::atomic<Known*> older;
    Known* removed_before = nullptr;
  };
  std::atomic<Known*> newest_{nullptr};
  Known* removed_ = nullptr;
};

/// The arena of a framework's allocator. A binding has one for the process. Thread-safe.
class ArenaSource {
 public:
  enum Mode : int { kOff = 0, kGradients = 1, kAll = 2 };

  /// New blocks come from this engine's arena. NULL: from none.
  void Attach(ha_engine* engine, int mode) {
    const std::scoped_lock lock(attaching_);
    if (engine != nullptr) engines_.Add(engine);
    engine_.store(engine, std::memory_order_release);
    mode_.store(engine != nullptr ? mode : kOff, std::memory_order_relaxed);
  }
  void TurnOff() { mode_.store(kOff, std::memory_order_relaxed); }
  [[nodiscard]] int mode() const { return mode_.load(std::memory_order_relaxed); }
  /// NULL if there is no engine, or its arena is exhausted.
  [[nodiscard]] void* Allocate(size_t bytes) const {
    ha_engine* const engine = engine_.load(std::memory_order_acquire);
    return engine != nullptr ? ha_arena_allocate(engine, bytes) : nullptr;
  }
  /// As KnownEngines::Free.
  bool Free(void* memory) const { return engines_.Free(memory); }

 private:
  std::atomic<ha_engine*> engine_{nullptr};
  std::atomic<int> mode_{kOff};
  KnownEngines engines_;
  std::mutex attaching_;
};

}  // namespace horoacc
