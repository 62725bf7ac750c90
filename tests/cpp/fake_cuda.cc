// The fake GPU: see fake_cuda.h.
#include "fake_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "execute/cuda/cuda_plugin.h"

namespace {

constexpr size_t kMemory = size_t{4} << 30;  // of a device; sparse

void Sleep() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

/// One file mapped twice: addresses to give out, which nobody can touch, and those of the truth.
class Memory {
 public:
  Memory() {
    const int fd = memfd_create("fake_cuda", 0);
    if (fd < 0 || ftruncate(fd, kMemory) != 0) std::abort();
    shown_ = static_cast<std::byte*>(
        mmap(nullptr, kMemory, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    real_ =
        static_cast<std::byte*>(mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
  }
  [[nodiscard]] bool Has(const void* memory) const {
    const auto* at = static_cast<const std::byte*>(memory);
    return at >= shown_ && at < shown_ + kMemory;
  }
  [[nodiscard]] std::byte* Real(const void* memory) const {
    return real_ + (static_cast<const std::byte*>(memory) - shown_);
  }
  void* Allocate(size_t bytes) {
    const size_t size = (bytes + 511) / 512 * 512 + 512;
    const std::scoped_lock lock(mutex_);
    size_t at = 0;
    if (auto& free = free_[size]; !free.empty()) {
      at = free.back();
      free.pop_back();
    } else {
      at = end_;
      end_ += size;
      if (end_ > kMemory) return nullptr;
    }
    sizes_[at] = size;
    return shown_ + at;
  }
  void Free(void* memory) {
    const auto at = static_cast<size_t>(static_cast<std::byte*>(memory) - shown_);
    const std::scoped_lock lock(mutex_);
    free_[sizes_.at(at)].push_back(at);
  }

 private:
  std::byte* shown_ = nullptr;
  std::byte* real_ = nullptr;
  std::mutex mutex_;
  size_t end_ = 0;
  std::map<size_t, size_t> sizes_;
  std::map<size_t, std::vector<size_t>> free_;
};

struct Event {
  std::mutex mutex;
  std::condition_variable moved;
  uint64_t recorded = 0;
  uint64_t done = 0;
};

class Stream {
 public:
  Stream() {
    std::thread([this] { Run(); }).detach();
  }
  void Put(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    moved_.notify_all();
  }
  void Drain() {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }
  std::atomic<bool> captured{false};

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      moved_.wait(lock, [this] { return !tasks_.empty(); });
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      Sleep();  // whoever does not wait for it is found out
      task();
      lock.lock();
      busy_ = false;
      moved_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;
};

/// Streams and what they use are never freed: their threads go with the process.
struct World {
  Memory memory[FAKE_CUDA_DEVICES];
  Stream first;
  std::mutex mutex;
  std::map<std::byte*, size_t> pinned;
  std::atomic<size_t> unpinned_bytes{0};
  std::atomic<int> copies{0};
  std::atomic<int> most_copies{0};
  std::atomic<bool> broken{false};
};

World& TheWorld() {
  static auto* const world = new World;
  return *world;
}

Stream& StreamOf(void* stream) {
  return stream == nullptr ? TheWorld().first : *static_cast<Stream*>(stream);
}

bool IsPinned(const void* memory, size_t bytes) {
  World& world = TheWorld();
  const auto* at = static_cast<const std::byte*>(memory);
  const std::scoped_lock lock(world.mutex);
  for (const auto& [begin, size] : world.pinned) {
    if (at >= begin && at + bytes <= begin + size) return true;
  }
  return false;
}

void CopyNow(void* to, const void* from, size_t bytes) {
  World& world = TheWorld();
  const int now = world.copies.fetch_add(1) + 1;
  for (int most = world.most_copies;
       now > most && !world.most_copies.compare_exchange_weak(most, now);) {
  }
  Sleep();
  std::memcpy(fake_cuda_real(to), fake_cuda_real(from), bytes);
  world.copies.fetch_sub(1);
}

int Fail(ha_cuda_error* error, const char* text) {
  std::snprintf(error->message, sizeof error->message, "%s", text);
  return 1;
}

int Open(void** self, int device, ha_cuda_error* error) {
  if (device < 0 || device >= FAKE_CUDA_DEVICES) return Fail(error, "no such device (fake)");
  *self = new int(device);
  return 0;
}

void Close(void* self) { delete static_cast<int*>(self); }

int NoReduce(void*, void*, const ha_cuda_reduce*, ha_cuda_error* error) {
  return Fail(error, "the fake GPU has no kernels");
}

int NoPack(void*, void*, const ha_cuda_pack*, ha_cuda_error* error) {
  return Fail(error, "the fake GPU has no kernels");
}

int Pin(void*, void* memory, size_t bytes, ha_cuda_error* error) {
  if (reinterpret_cast<uintptr_t>(memory) % 4096 != 0) return Fail(error, "not on a page (fake)");
  const std::scoped_lock lock(TheWorld().mutex);
  TheWorld().pinned[static_cast<std::byte*>(memory)] = bytes;
  return 0;
}

void Unpin(void*, void* memory) {
  const std::scoped_lock lock(TheWorld().mutex);
  TheWorld().pinned.erase(static_cast<std::byte*>(memory));
}

int CreateStream(void*, void** stream, ha_cuda_error*) {
  *stream = fake_cuda_stream(0);
  return 0;
}

int CreateEvent(void*, void** event, ha_cuda_error*) {
  *event = fake_cuda_event();
  return 0;
}

void DestroyEvent(void*, void*) {}  // a stream may still come to it

int Record(void*, void* event, void* stream, ha_cuda_error* error) {
  if (StreamOf(stream).captured) return Fail(error, "the stream is being captured (fake)");
  fake_cuda_record(event, stream);
  return 0;
}

int Wait(void*, void* stream, void* event, ha_cuda_error*) {
  fake_cuda_wait(stream, event);
  return 0;
}

int IsDone(void*, void* event, int* done, ha_cuda_error*) {
  *done = fake_cuda_is_done(event);
  return 0;
}

int Copy(void*, void* stream, void* to, const void* from, size_t bytes, ha_cuda_error* error) {
  const bool out = fake_cuda_device_of(to) >= 0;
  if (out && TheWorld().broken) return Fail(error, "the GPU has fallen off the bus (fake)");
  if (out == (fake_cuda_device_of(from) >= 0)) return Fail(error, "not one side is a GPU's (fake)");
  if (!IsPinned(out ? from : to, bytes)) TheWorld().unpinned_bytes += bytes;
  StreamOf(stream).Put([=] { CopyNow(to, from, bytes); });
  return 0;
}

constexpr ha_cuda_plugin kPlugin = {
    HA_CUDA_PLUGIN_VERSION, Open,        Close,        NoReduce, NoPack, Pin,    Unpin,
    CreateStream,           CreateEvent, DestroyEvent, Record,   Wait,   IsDone, Copy};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const ha_cuda_plugin* horoacc_cuda_plugin_v2() {
  return &kPlugin;
}

void* fake_cuda_allocate(int device, size_t bytes) {
  return TheWorld().memory[device].Allocate(bytes);
}

void fake_cuda_free(void* memory) {
  const int device = fake_cuda_device_of(memory);
  if (device >= 0) TheWorld().memory[device].Free(memory);
}

void* fake_cuda_real(const void* memory) {
  const int device = fake_cuda_device_of(memory);
  return device >= 0 ? TheWorld().memory[device].Real(memory) : const_cast<void*>(memory);
}

int fake_cuda_device_of(const void* memory) {
  for (int device = 0; device < FAKE_CUDA_DEVICES; ++device) {
    if (TheWorld().memory[device].Has(memory)) return device;
  }
  return -1;
}

void* fake_cuda_stream(int) { return new Stream; }

void fake_cuda_launch(void* stream, void (*body)(void*), void* argument) {
  StreamOf(stream).Put([=] { body(argument); });
}

void fake_cuda_synchronize(void* stream) { StreamOf(stream).Drain(); }

void* fake_cuda_event() { return new Event; }

void fake_cuda_event_free(void*) {}

void fake_cuda_record(void* event, void* stream) {
  auto* const recorded = static_cast<Event*>(event);
  uint64_t number = 0;
  {
    const std::scoped_lock lock(recorded->mutex);
    number = ++recorded->recorded;
  }
  StreamOf(stream).Put([=] {
    const std::scoped_lock lock(recorded->mutex);
    recorded->done = number;
    recorded->moved.notify_all();
  });
}

void fake_cuda_wait(void* stream, void* event) {
  auto* const awaited = static_cast<Event*>(event);
  uint64_t number = 0;
  {
    const std::scoped_lock lock(awaited->mutex);
    number = awaited->recorded;
  }
  StreamOf(stream).Put([=] {
    std::unique_lock lock(awaited->mutex);
    awaited->moved.wait(lock, [&] { return awaited->done >= number; });
  });
}

int fake_cuda_is_done(void* event) {
  auto* const asked = static_cast<Event*>(event);
  const std::scoped_lock lock(asked->mutex);
  return asked->done == asked->recorded ? 1 : 0;
}

void fake_cuda_capture(void* stream, int on) { StreamOf(stream).captured = on != 0; }

void fake_cuda_break(int on) { TheWorld().broken = on != 0; }

size_t fake_cuda_unpinned_bytes() { return TheWorld().unpinned_bytes; }

int fake_cuda_most_copies() { return TheWorld().most_copies.exchange(0); }

}  // extern "C"
