#pragma once
// The engines that a framework's tensors may lie in, for allocators that are asked to free them.
#include <atomic>

#include "api/horoacc.h"

namespace horoacc {

/// Only the arenas of these engines are asked, which outlive them. Those in which nothing lies any
/// more leave the list, but are not freed: another thread may be walking it.
class KnownEngines {
 public:
  /// One caller at a time.
  void Add(ha_engine* engine) {
    // Whoever stands on one that is taken out comes from there to the older ones all the same.
    std::atomic<Known*>* place = &newest_;
    while (Known* const known = place->load(std::memory_order_acquire)) {
      if (known->engine == engine) return;
      if (ha_arena_over(known->engine) != 0) {
        place->store(known->older.load(std::memory_order_acquire), std::memory_order_release);
      } else {
        place = &known->older;
      }
    }
    newest_.store(new Known(engine, newest_.load(std::memory_order_acquire)),
                  std::memory_order_release);
  }

  /// Frees a block if it is an engine's. Whose it is, is asked of the engines: the block itself has
  /// no room for an answer.
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
  };
  std::atomic<Known*> newest_{nullptr};
};

}  // namespace horoacc
