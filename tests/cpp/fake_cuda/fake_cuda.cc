// The fake GPU, for scripts: see fake_cuda.h.
#include "fake_cuda/fake_cuda.h"

#include <deque>
#include <mutex>

#include "fake_cuda/fake_world.h"

using namespace horoacc::testing;

extern "C" {

void* fake_cuda_allocate(int device, size_t bytes) {
  return TheWorld().memory[device].Allocate(bytes);
}

void fake_cuda_free(void* memory) {
  const int device = fake_cuda_device_of(memory);
  if (device >= 0) TheWorld().memory[device].Free(memory);
}

void* fake_cuda_real(const void* memory) {
  const FakeMemory* const of = MemoryOf(memory);
  return of != nullptr ? of->Real(of->OffsetOf(memory)) : const_cast<void*>(memory);
}

int fake_cuda_device_of(const void* memory) {
  const FakeMemory* const of = MemoryOf(memory);
  return of != nullptr ? of->device() : -1;
}

void* fake_cuda_stream(int) {
  return On("FAKE_CUDA_ONE_QUEUE") ? &TheWorld().first : new FakeStream;
}

void fake_cuda_launch(void* stream, void (*body)(void*), void* argument) {
  StreamOf(stream).Put([=] { body(argument); });
}

void fake_cuda_synchronize(void* stream) { StreamOf(stream).Drain(); }

// None is ever freed: a stream may still come to it.
void* fake_cuda_event() {
  static std::mutex mutex;
  static auto& events = *new std::deque<FakeEvent>;
  const std::lock_guard lock(mutex);
  return &events.emplace_back();
}

void fake_cuda_event_free(void*) {}

void fake_cuda_record(void* event, void* stream) {
  StreamOf(stream).Put([record = static_cast<FakeEvent*>(event)->Begin()] { *record = true; });
}

void fake_cuda_wait(void* stream, void* event) {
  StreamOf(stream).PutWait(
      [record = static_cast<FakeEvent*>(event)->last()] { return record->load(); },
      TheWorld().waits);
}

int fake_cuda_is_done(void* event) {
  return static_cast<FakeEvent*>(event)->last()->load() ? 1 : 0;
}

void fake_cuda_capture(void* stream, int on) { StreamOf(stream).captured = on != 0; }

void fake_cuda_break(int on) { TheWorld().broken = on != 0; }

size_t fake_cuda_unpinned_bytes() { return TheWorld().unpinned_bytes; }

int fake_cuda_waits() { return TheWorld().waits; }

int fake_cuda_most_copies() { return TheWorld().most_copies.exchange(0); }

void fake_cuda_hold_copies_to_host(int after) { TheWorld().copies_to_host_left = after; }

size_t fake_cuda_bytes_to_device() { return TheWorld().bytes_to_device; }

int fake_cuda_current() { return CurrentDevice(); }

void fake_cuda_count_wait(int more) { TheWorld().waits.fetch_add(more); }

}  // extern "C"
