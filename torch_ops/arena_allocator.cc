// torch's CPU allocator, redirected: tensors that the ranks of a host share are allocated in the
// arena. Process-wide state belongs to a binding like this, not to the core.
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <cstddef>
#include <mutex>

#include "api/horoacc.h"
#include "api/known_engines.h"
#include "size_set.h"

namespace horoacc {
namespace {

constexpr size_t kLeastOfAll = 64 << 10;  // in mode `all`; a smaller copy costs next to nothing

struct State {
  ArenaSource arena;
  std::atomic<const SizeSet*> sizes{nullptr};
  c10::Allocator* previous = nullptr;  // serves all other blocks; set before it is used
  std::mutex registering;
};

State& TheState() {
  static State state;
  return state;
}

void FreeBlock(void* memory) { TheState().arena.Free(memory); }

void FreeAnyBlock(void* memory) {
  if (!TheState().arena.Free(memory)) TheState().previous->raw_deallocate(memory);
}

// Nested calls of this thread that make DistributedDataParallel's buckets.
thread_local int making_buckets = 0;

bool Wanted(const State& state, int mode, size_t bytes) {
  if (making_buckets > 0 || mode == ArenaSource::kAll) return bytes >= kLeastOfAll;
  // Gradients are allocated in a backward pass only; the check reads a thread-local.
  if (torch::autograd::get_current_graph_task_id() == -1) return false;
  const SizeSet* sizes = state.sizes.load(std::memory_order_acquire);
  return sizes != nullptr && sizes->Contains(bytes);
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    State& state = TheState();
    const int mode = state.arena.mode();
    if (mode != ArenaSource::kOff && bytes > 0 && Wanted(state, mode, bytes)) {
      void* const memory = state.arena.Allocate(bytes);
      if (memory != nullptr) return {memory, memory, &FreeBlock, c10::Device(c10::DeviceType::CPU)};
    }
    return state.previous->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &FreeAnyBlock; }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

void Install() {
  static ArenaAllocator allocator;
  TheState().previous = c10::GetCPUAllocator();
  pthread_atfork(nullptr, nullptr, [] { TheState().arena.TurnOff(); });
  // Above the priority of the present one, which still serves all other blocks.
  c10::SetCPUAllocator(&allocator, 255);
}

}  // namespace
}  // namespace horoacc

extern "C" {

// New blocks come from this engine's arena. NULL: from none.
HA_API void ha_torch_attach(ha_engine* engine, int mode) {
  static std::once_flag installed;
  if (engine != nullptr) std::call_once(installed, &horoacc::Install);
  horoacc::TheState().arena.Attach(engine, mode);
}

// 1: this thread begins to make DistributedDataParallel's buckets; -1: it has ended.
HA_API void ha_torch_buckets(int change) { horoacc::making_buckets += change; }

// Adds sizes of gradients. An old set is never freed, because another thread may be reading it.
HA_API void ha_torch_register_sizes(const size_t* sizes, size_t count) {
  using namespace horoacc;
  State& state = TheState();
  const std::scoped_lock lock(state.registering);
  const SizeSet* old = state.sizes.load(std::memory_order_acquire);
  if (old != nullptr && old->ContainsAll(sizes, count)) return;
  state.sizes.store(new SizeSet(old, sizes, count), std::memory_order_release);
}

}  // extern "C"
