#include "arena_allocator.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
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

constexpr size_t kLeast = 64 << 10;  // below, a copy costs next to nothing
constexpr size_t kAlignment = 64;    // the arena's

enum Mode : int { kOff = 0, kGradients = 1, kAll = 2 };

// A binding is the place of process-wide state: TensorFlow has one allocator.
struct State {
  std::atomic<ha_engine*> engine{nullptr};  // where new blocks come from
  std::atomic<int> mode{kOff};
  KnownEngines engines;
  ArenaSizes sizes;
  std::mutex writing;
};

State& TheState() {
  static auto* const state = new State;  // threads of TensorFlow outlive static objects
  return *state;
}

void* FromArena(size_t alignment, size_t bytes) {
  State& state = TheState();
  if (bytes < kLeast || alignment > kAlignment) return nullptr;
  const int mode = state.mode.load(std::memory_order_relaxed);
  if (mode == kOff || (mode == kGradients && !state.sizes.Contains(bytes))) return nullptr;
  ha_engine* const engine = state.engine.load(std::memory_order_acquire);
  return engine != nullptr ? ha_arena_allocate(engine, bytes) : nullptr;
}

// Newer versions of TensorFlow have one that is told the size.
template <class Allocator>
void Deallocate(Allocator* allocator, void* memory, size_t alignment, size_t bytes) {
  if constexpr (requires { allocator->DeallocateRaw(memory, alignment, bytes); }) {
    allocator->DeallocateRaw(memory, alignment, bytes);
  } else {
    allocator->DeallocateRaw(memory);
  }
}

// In front of the allocator that TensorFlow would have without it, which serves all but the
// arena's.
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
    if (!TheState().engines.Free(memory)) wrapped()->DeallocateRaw(memory);
  }
  void DeallocateRaw(void* memory, size_t alignment, size_t bytes) /* override, if there is one */ {
    if (!TheState().engines.Free(memory)) Deallocate(wrapped(), memory, alignment, bytes);
  }
  // The one behind knows no sizes of the arena's blocks.
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

// TensorFlow takes the factory of the highest priority at its first allocation, ends the process
// if one comes after that, and tells nobody whether it was. What it knows is private; an explicit
// instantiation may name private members.
template <auto kMutex, auto kAllocated, auto kFactories>
struct Registry {
  friend AllocatorFactory* Best(AllocatorFactoryRegistry& registry, int* priority) {
    const Locked lock(registry.*kMutex);
    return registry.*kAllocated ? nullptr : BestOf(registry.*kFactories, priority);
  }
};
// The factory that is going to be used; nullptr: one is in use already.
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
  pthread_atfork(nullptr, nullptr, [] { TheState().mode.store(kOff, std::memory_order_relaxed); });
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

// Puts the arena in front of TensorFlow's allocator. 0: TensorFlow has allocated before.
HA_API int ha_tensorflow_redirect() { return horoacc::Installed() ? 1 : 0; }

// Takes new blocks from this engine's arena. NULL: takes none any more.
HA_API void ha_tensorflow_arena(ha_engine* engine, int mode) {
  using namespace horoacc;
  State& state = TheState();
  const std::scoped_lock lock(state.writing);
  if (engine == nullptr) {
    state.mode.store(kOff, std::memory_order_relaxed);
    state.engine.store(nullptr, std::memory_order_release);
    return;
  }
  state.engines.Add(engine);
  state.engine.store(engine, std::memory_order_release);
  state.mode.store(mode, std::memory_order_relaxed);
}

}  // extern "C"
