#pragma once
// State that the parts of the fake GPU share: its memory, its streams, and pinned memory.
#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "execute/cuda/cuda_plugin.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/fake_memory.h"
#include "fake_cuda/fake_stream.h"

namespace horoacc::testing {

/// Streams, and the state that they use, are never freed: their threads end with the process.
struct World {
  FakeMemory memory[FAKE_CUDA_DEVICES] = {FakeMemory(0), FakeMemory(1)};
  FakeStream first;
  std::mutex mutex;
  /// Sizes, and how often: ranks that are threads pin the same memory.
  std::map<std::byte*, std::pair<size_t, int>> pinned;
  std::list<std::unique_ptr<FakeMemory>> opened;  ///< of other processes
  std::atomic<size_t> unpinned_bytes{0};
  std::atomic<int> copies{0};
  std::atomic<int> most_copies{0};
  std::atomic<int> waits{0};
  std::atomic<bool> broken{false};
  std::atomic<int> copies_to_host_left{
      -1};  ///< copies to the host before the others are held; -1: all
  std::atomic<size_t> bytes_to_device{0};
};

World& TheWorld();
FakeStream& StreamOf(void* stream);
/// The device's memory that has the address; null: it is the host's.
FakeMemory* MemoryOf(const void* memory);
void* Real(const void* memory);
bool IsPinned(const void* memory, size_t bytes);
int Fail(ha_cuda_error* error, const char* text);
/// Of this thread, as CUDA has one; -1: none.
int& CurrentDevice();
/// An environment variable is set.
bool On(const char* variable);

}  // namespace horoacc::testing
