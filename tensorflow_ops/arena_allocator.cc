#include "arena_allocator.h"

#include <pthread.h>

#include <optional>

#include "api/horoacc.h"
#include "api/known_engines.h"
#include "arena_sizes.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/allocator_registry.h"

namespace horoacc {
namespace {

using tsl::AllocatorFactory;
using tsl::AllocatorFactoryRegistry;

constexpr size_t kLeast = 64 << 10;  // a smaller copy costs next to nothing
constexpr size_t kAlignment = 64;    // the arena's

// Process-wide, as TensorFlow's allocator is.
struct State {
  ArenaSource arena;
  ArenaSizes sizes;
};

State& TheState() {
  static auto* const state = new State;  // threads of TensorFlow outlive static objects
  return *state;
}

void* FromArena(size_t alignment, size_t bytes) {
  State& state = TheState();
  if (bytes < kLeast || alignment > kAlignment) return nullptr;
  const int mode = state.arena.mode();
  if (mode == ArenaSource::kOff) return nullptr;
  if (mode == ArenaSource::kGradients && !state.sizes.Contains(bytes)) return nullptr;
  return state.arena.Allocate(bytes);
}

// Newer versions of TensorFlow pass alignment and size.
template <class Allocator>
void Deallocate(Allocator* allocator, void* memory, size_t alignment, size_t bytes) {
  if constexpr (requires { allocator->DeallocateRaw(memory, alignment, bytes); }) {
    allocator->DeallocateRaw(memory, alignment, bytes);
  } else {
    allocator->DeallocateRaw(memory);
  }
}

// In front of TensorFlow's own allocator, which serves all other blocks.
class ArenaAllocator final : public tsl::AllocatorWrapper {
 public:
  explicit ArenaAllocator(tsl::Allocator* behind) : AllocatorWrapper(behind) {}

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (void* const memory = FromArena(alignment, bytes)) return memory;
    return wrapped()->AllocateRaw(alignment, bytes);
  }
  void* AllocateRaw(size_t alignment, size_t bytes,
                    const tsl::AllocationAttributes& attributes) override {
    if (void* const memory = FromArena(alignment, bytes)) return memory;
    return wrapped()->AllocateRaw(alignment, bytes, attributes);
  }
  void DeallocateRaw(void* memory) override {
    if (!TheState().arena.Free(memory)) wrapped()->DeallocateRaw(memory);
  }
  void DeallocateRaw(void* memory, size_t alignment, size_t bytes) /* override, if there is one */ {
    if (!TheState().arena.Free(memory)) Deallocate(wrapped(), memory, alignment, bytes);
  }
  // The wrapped allocator does not know the sizes of arena blocks.
  bool TracksAllocationSizes() const override { return false; }
  size_t AllocatedSizeSlow(const void*) const override { return 0; }
  std::optional<tsl::AllocatorStats> GetStats() override { return wrapped()->GetStats(); }
  bool ClearStats() override { return wrapped()->ClearStats(); }
};

class ArenaFactory final : public AllocatorFactory {
 public:
  explicit ArenaFactory(AllocatorFactory* behind) : behind_(behind) {}
  bool NumaEnabled() override { return behind_->NumaEnabled(); }
  tsl::Allocator* CreateAllocator() override {
    return new ArenaAllocator(behind_->CreateAllocator());
  }
  tsl::SubAllocator* CreateSubAllocator(int node) override {
    return behind_->CreateSubAllocator(node);
  }

 private:
  AllocatorFactory* const behind_;  // the registry's, which is never freed
};

template <class Entries>
AllocatorFactory* BestOf(const Entries& entries, int* priority) {
  AllocatorFactory* best = nullptr;
  for (const auto& entry : entries) {
    if (best != nullptr && entry.priority <= *priority) continue;
    best = entry.factory.get();
    *priority = entry.priority;
  }
  return best;
}

// A mutex of TensorFlow's, or in newer versions of Abseil's.
template <class Mutex>
class Locked {
 public:
  explicit Locked(Mutex& mutex) : mutex_(mutex) {
    if constexpr (requires { mutex.Lock(); }) {
      mutex_.Lock();
    } else {
      mutex_.lock();
    }
  }
  ~Locked() {
    if constexpr (requires(Mutex& mutex) { mutex.Unlock(); }) {
      mutex_.Unlock();
    } else {
      mutex_.unlock();
    }
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  Mutex& mutex_;
};

// TensorFlow takes the factory of the highest priority at its first allocation, and ends the
// process if one is registered later. Only private members tell whether it has allocated; an
// explicit instantiation may name them.
template <auto kMutex, auto kAllocated, auto kFactories>
struct Registry {
  friend AllocatorFactory* Best(AllocatorFactoryRegistry& registry, int* priority) {
    const Locked lock(registry.*kMutex);
    return registry.*kAllocated ? nullptr : BestOf(registry.*kFactories, priority);
  }
};
// The factory that would be used; nullptr: TensorFlow has allocated already.
AllocatorFactory* Best(AllocatorFactoryRegistry& registry, int* priority);
template struct Registry<&AllocatorFactoryRegistry::mu_,
                         &AllocatorFactoryRegistry::first_alloc_made_,
                         &AllocatorFactoryRegistry::factories_>;

bool Install() {
  AllocatorFactoryRegistry& registry = *AllocatorFactoryRegistry::singleton();
  int priority = 0;
  AllocatorFactory* const best = Best(registry, &priority);
  if (best == nullptr) return false;
  registry.Register(__FILE__, __LINE__, "HoroaccArena", priority + 1, new ArenaFactory(best));
  pthread_atfork(nullptr, nullptr, [] { TheState().arena.TurnOff(); });
  return true;
}

// Whether TensorFlow allocates through the arena's allocator.
bool Installed() {
  static const bool installed = Install();
  return installed;
}

}  // namespace

void ExpectReduced(size_t bytes) {
  if (bytes >= kLeast) TheState().sizes.Add(bytes);
}

}  // namespace horoacc

extern "C" {

// Puts the arena in front of TensorFlow's allocator. 0: too late, TensorFlow has allocated.
HA_API int ha_tensorflow_redirect() { return horoacc::Installed() ? 1 : 0; }

// New blocks come from this engine's arena. NULL: from none.
HA_API void ha_tensorflow_arena(ha_engine* engine, int mode) {
  horoacc::TheState().arena.Attach(engine, mode);
}

}  // extern "C"
