#pragma once
// The engines that a framework's tensors may lie in, for allocators that are asked to free them.
#include <atomic>

#include "api/horoacc.h"

namespace horoacc {

/// A list that only grows: these engines are never freed, as their memory may be in use for as long
/// as the process lives, and another thread may be walking the list.
class KnownEngines {
 public:
  /// One caller at a time.
  void Add(ha_engine* engine) {
    Known* const newest = newest_.load(std::memory_order_acquire);
    for (const Known* known = newest; known; known = known->older) {
      if (known->engine == engine) return;
    }
    newest_.store(new Known{engine, newest}, std::memory_order_release);
  }

  /// Frees a block if it is an engine's. Whose it is, is asked of the engines: the block itself has
  /// no room for an answer.
  bool Free(void* memory) const {
    for (const Known* known = newest_.load(std::memory_order_acquire); known;
         known = known->older) {
      if (!ha_arena_contains(known->engine, memory)) continue;
      ha_arena_free(known->engine, memory);
      return true;
    }
    return false;
  }

 private:
  struct Known {
    ha_engine* engine;
    Known* older;
  };
  std::atomic<Known*> newest_{nullptr};
};

}  // namespace horoacc
