#include "fake_cuda/fake_world.h"

#include <cstdio>
#include <cstdlib>

namespace horoacc::testing {

World& TheWorld() {
  static auto* const world = new World;
  return *world;
}

FakeStream& StreamOf(void* stream) {
  return stream == nullptr ? TheWorld().first : *static_cast<FakeStream*>(stream);
}

/// The device's memory that has the address; null: it is the host's.
FakeMemory* MemoryOf(const void* memory) {
  World& world = TheWorld();
  for (FakeMemory& own : world.memory) {
    if (own.Has(memory)) return &own;
  }
  const std::scoped_lock lock(world.mutex);
  for (const auto& opened : world.opened) {
    if (opened->Has(memory)) return opened.get();
  }
  return nullptr;
}

void* Real(const void* memory) { return fake_cuda_real(memory); }

bool IsPinned(const void* memory, size_t bytes) {
  World& world = TheWorld();
  const auto* at = static_cast<const std::byte*>(memory);
  const std::scoped_lock lock(world.mutex);
  for (const auto& [begin, pinned] : world.pinned) {
    if (at >= begin && at + bytes <= begin + pinned.first) return true;
  }
  return false;
}

int Fail(ha_cuda_error* error, const char* text) {
  std::snprintf(error->message, sizeof error->message, "%s", text);
  return 1;
}

int& CurrentDevice() {
  thread_local int current = -1;
  return current;
}

bool On(const char* variable) { return std::getenv(variable) != nullptr; }

}  // namespace horoacc::testing
