// torch's CPU allocator, redirected: tensors whose memory the ranks of a host should see are born
// in the arena. A binding, hence the place of process-wide state.
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>

#include "api/horoacc.h"
#include "api/known_engines.h"
#include "size_set.h"

namespace horoacc {
namespace {

constexpr size_t kLeastOfAll = 64 << 10;  // in mode `all`; below, a copy costs next to nothing

enum Mode : int { kOff = 0, kGradients = 1, kAll = 2 };

struct State {
  std::atomic<ha_engine*> engine{nullptr};  // where new blocks come from
  std::atomic<int> mode{kOff};
  std::atomic<const SizeSet*> sizes{nullptr};
  KnownEngines engines;
  c10::Allocator* previous = nullptr;  // serves everything but the arena's; set before it is asked
  std::mutex writing;
};

State& TheState() {
  static State state;
  return state;
}

void GiveBack(void* memory) { TheState().engines.Free(memory); }

void GiveBackAny(void* memory) {
  if (!TheState().engines.Free(memory)) TheState().previous->raw_deallocate(memory);
}

// How deep this thread is in making DistributedDataParallel's buckets.
thread_local int making_buckets = 0;

bool Wanted(const State& state, int mode, size_t bytes) {
  if (making_buckets > 0) return bytes >= kLeastOfAll;
  if (mode == kAll) return bytes >= kLeastOfAll;
  // Outside of a backward pass nothing becomes a gradient; the check reads a thread-local.
  if (torch::autograd::get_current_graph_task_id() == -1) return false;
  const SizeSet* sizes = state.sizes.load(std::memory_order_acquire);
  return sizes != nullptr && sizes->Contains(bytes);
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    State& state = TheState();
    const int mode = state.mode.load(std::memory_order_relaxed);
    if (mode != kOff && bytes > 0 && Wanted(state, mode, bytes)) {
      ha_engine* engine = state.engine.load(std::memory_order_acquire);
      void* memory = engine != nullptr ? ha_arena_allocate(engine, bytes) : nullptr;
      if (memory != nullptr) return {memory, memory, &GiveBack, c10::Device(c10::DeviceType::CPU)};
    }
    return state.previous->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &GiveBackAny; }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

void TurnOffInChild() { TheState().mode.store(kOff, std::memory_order_relaxed); }

void Install() {
  static ArenaAllocator allocator;
  TheState().previous = c10::GetCPUAllocator();
  pthread_atfork(nullptr, nullptr, &TurnOffInChild);
  // Above whatever priority the present one has: it still serves everything but the arena's.
  c10::SetCPUAllocator(&allocator, 255);
}

}  // namespace
}  // namespace horoacc

extern "C" {

// Takes new blocks from this engine's arena. NULL: takes none any more.
HA_API void ha_torch_attach(ha_engine* engine, int mode) {
  using namespace horoacc;
  State& state = TheState();
  const std::scoped_lock lock(state.writing);
  if (engine == nullptr) {
    state.mode.store(kOff, std::memory_order_relaxed);
    state.engine.store(nullptr, std::memory_order_release);
    return;
  }
  static std::once_flag installed;
  std::call_once(installed, &Install);
  state.engines.Add(engine);
  state.engine.store(engine, std::memory_order_release);
  state.mode.store(mode, std::memory_order_relaxed);
}

// With 1, this thread goes on to make DistributedDataParallel's buckets; -1: it is through.
HA_API void ha_torch_buckets(int change) { horoacc::making_buckets += change; }

// Adds sizes of gradients. An old set is never freed: another thread may be reading it.
HA_API void ha_torch_register_sizes(const size_t* sizes, size_t count) {
  using namespace horoacc;
  State& state = TheState();
  const std::scoped_lock lock(state.writing);
  const SizeSet* old = state.sizes.load(std::memory_order_acquire);
  if (old != nullptr && old->ContainsAll(sizes, count)) return;
  state.sizes.store(new SizeSet(old, sizes, count), std::memory_order_release);
}

}  // extern "C"
