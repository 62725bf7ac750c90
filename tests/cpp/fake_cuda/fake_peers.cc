#include "fake_cuda/fake_peers.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <span>

#include "fake_cuda/fake_world.h"

namespace horoacc::testing {
namespace {

/// The content of a ha_cuda_handle.
struct Handle {
  pid_t process;
  int fd;
  int device;
  size_t offset;
};

FakeMemory* OpenFile(const Handle& given) {
  auto opened = FakeMemory::Open(given.device, given.process, given.fd);
  if (!opened) return nullptr;
  const std::scoped_lock lock(TheWorld().mutex);
  return TheWorld().opened.emplace_back(std::move(opened)).get();
}

}  // namespace

int Traits(void* self, ha_cuda_traits* traits, ha_cuda_error*) {
  const int device = *static_cast<int*>(self);
  std::memset(traits->uuid, 'f', sizeof traits->uuid);
  traits->uuid[0] = static_cast<unsigned char>(device);
  std::snprintf(traits->bus_id, sizeof traits->bus_id, "fake:%d", device);
  traits->shares = On("FAKE_CUDA_SHARES_NOTHING") ? 0 : 1;
  traits->stream_words = On("FAKE_CUDA_NO_WORDS") ? 0 : 1;
  traits->exclusive = On("FAKE_CUDA_EXCLUSIVE") ? 1 : 0;
  traits->concurrent = On("FAKE_CUDA_MPS") ? 1 : 0;
  traits->processors = FAKE_CUDA_PROCESSORS;
  return 0;
}

int Allocate(void* self, size_t bytes, void** memory, ha_cuda_error* error) {
  *memory = fake_cuda_allocate(*static_cast<int*>(self), bytes);
  return *memory != nullptr ? 0 : Fail(error, "out of memory (fake)");
}

void Deallocate(void*, void* memory) { fake_cuda_free(memory); }

int ShareMemory(void*, void* memory, ha_cuda_handle* handle, ha_cuda_error*) {
  const FakeMemory& of = *MemoryOf(memory);
  const Handle made{getpid(), of.fd(), of.device(), of.OffsetOf(memory)};
  std::memcpy(handle->bytes, &made, sizeof made);
  return 0;
}

int OpenMemory(void* self, const ha_cuda_handle* handle, void** memory, ha_cuda_error* error) {
  Handle given{};
  std::memcpy(&given, handle->bytes, sizeof given);
  if (given.process == getpid()) return Fail(error, "it is this process's own (fake)");
  if (given.device != *static_cast<int*>(self) && On("FAKE_CUDA_NO_PEERS"))
    return Fail(error, "no way to that GPU (fake)");
  const FakeMemory* const opened = OpenFile(given);
  if (opened == nullptr) return Fail(error, "that process is gone (fake)");
  *memory = opened->Shown(given.offset);
  return 0;
}

void CloseMemory(void*, void* memory) {
  const std::scoped_lock lock(TheWorld().mutex);
  TheWorld().opened.remove_if([memory](const auto& opened) { return opened->Has(memory); });
}

int WriteWords(void*, void* stream, uint32_t* const* words, size_t count, uint32_t value,
               ha_cuda_error* error) {
  for (uint32_t* const word : std::span(words, count)) {
    if (!IsPinned(word, sizeof *word)) return Fail(error, "a word that is not pinned (fake)");
    StreamOf(stream).Put([=] { std::atomic_ref(*word).store(value, std::memory_order_release); });
  }
  return 0;
}

int AwaitWords(void*, void* stream, uint32_t* const* words, size_t count, uint32_t value,
               ha_cuda_error* error) {
  for (uint32_t* const word : std::span(words, count)) {
    if (!IsPinned(word, sizeof *word)) return Fail(error, "a word that is not pinned (fake)");
    StreamOf(stream).PutWait(
        [=] {
          const uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
          return static_cast<int32_t>(now - value) >= 0;
        },
        TheWorld().waits);
  }
  return 0;
}

}  // namespace horoacc::testing
