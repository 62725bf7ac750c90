// The fake GPU: see fake_cuda.h.
#include "fake_cuda.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "execute/cuda/cuda_plugin.h"
#include "fake_kernels.h"
#include "fake_memory.h"
#include "fake_programs.h"
#include "fake_stream.h"

namespace {

using namespace horoacc::testing;

constexpr int kProcessors = 8;

/// Streams and what they use are never freed: their threads go with the process.
struct World {
  FakeMemory memory[FAKE_CUDA_DEVICES] = {FakeMemory(0), FakeMemory(1)};
  FakeStream first;
  std::mutex mutex;
  /// Sizes, and how often: ranks that are threads pin the same.
  std::map<std::byte*, std::pair<size_t, int>> pinned;
  std::list<std::unique_ptr<FakeMemory>> opened;  ///< of other processes
  std::atomic<size_t> unpinned_bytes{0};
  std::atomic<int> copies{0};
  std::atomic<int> most_copies{0};
  std::atomic<int> waits{0};
  std::atomic<bool> broken{false};
};

World& TheWorld() {
  static auto* const world = new World;
  return *world;
}

FakeStream& StreamOf(void* stream) {
  return stream == nullptr ? TheWorld().first : *static_cast<FakeStream*>(stream);
}

/// Whose memory it is; null: the host's.
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

void CopyNow(void* to, const void* from, size_t bytes) {
  World& world = TheWorld();
  const int now = world.copies.fetch_add(1) + 1;
  for (int most = world.most_copies;
       now > most && !world.most_copies.compare_exchange_weak(most, now);) {
  }
  SleepShortly();
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

bool On(const char* variable) { return std::getenv(variable) != nullptr; }

int Reduce(void*, void* stream, const ha_cuda_reduce* job, ha_cuda_error* error) {
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (size_t s = 0; s < job->source_count; ++s) sources.push_back(Real(job->sources[s]));
  for (size_t d = 0; d < job->destination_count; ++d)
    destinations.push_back(Real(job->destinations[d]));
  const auto plan = horoacc::cuda::PlanReduce({.sources = sources,
                                               .destinations = destinations,
                                               .count = job->count,
                                               .type = static_cast<horoacc::DType>(job->type),
                                               .op = static_cast<horoacc::ReduceOp>(job->op),
                                               .scale = {job->pre, job->post, job->divisor}});
  if (!plan.ok()) return Fail(error, plan.error().message.c_str());
  StreamOf(stream).Put([plan = plan.value()] { RunReduce(plan); });
  return 0;
}

int Pack(void*, void* stream, const ha_cuda_pack* job, ha_cuda_error* error) {
  if (TheWorld().broken) return Fail(error, "the GPU has fallen off the bus (fake)");
  std::vector<horoacc::cuda::Tensor> tensors;
  for (size_t t = 0; t < job->tensor_count; ++t) {
    const ha_cuda_tensor& tensor = job->tensors[t];
    tensors.push_back({Real(tensor.from), Real(tensor.to), tensor.count});
  }
  auto plan = horoacc::cuda::PlanPack({.tensors = tensors,
                                       .from = static_cast<horoacc::DType>(job->from_type),
                                       .to = static_cast<horoacc::DType>(job->to_type),
                                       .factor = job->factor,
                                       .nonfinite = job->nonfinite});
  if (!plan.ok()) return Fail(error, plan.error().message.c_str());
  StreamOf(stream).Put([plan = std::move(plan.value())] { RunPack(plan); });
  return 0;
}

int Pin(void*, void* memory, size_t bytes, ha_cuda_error* error) {
  if (reinterpret_cast<uintptr_t>(memory) % 4096 != 0) return Fail(error, "not on a page (fake)");
  const std::scoped_lock lock(TheWorld().mutex);
  auto& pinned = TheWorld().pinned[static_cast<std::byte*>(memory)];
  pinned = {bytes, pinned.second + 1};
  return 0;
}

void Unpin(void*, void* memory) {
  const std::scoped_lock lock(TheWorld().mutex);
  const auto found = TheWorld().pinned.find(static_cast<std::byte*>(memory));
  if (--found->second.second == 0) TheWorld().pinned.erase(found);
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

int Zero(void*, void* stream, void* memory, size_t bytes, ha_cuda_error* error) {
  if (fake_cuda_device_of(memory) < 0) return Fail(error, "it is no GPU's (fake)");
  StreamOf(stream).Put([=] { std::memset(Real(memory), 0, bytes); });
  return 0;
}

// --- together with other processes ---

/// What is in a ha_cuda_handle.
struct Handle {
  pid_t process;
  int fd;
  int device;
  size_t offset;
};

int Traits(void* self, ha_cuda_traits* traits, ha_cuda_error*) {
  const int device = *static_cast<int*>(self);
  std::memset(traits->uuid, 'f', sizeof traits->uuid);
  traits->uuid[0] = static_cast<unsigned char>(device);
  std::snprintf(traits->bus_id, sizeof traits->bus_id, "fake:%d", device);
  traits->shares = On("FAKE_CUDA_SHARES_NOTHING") ? 0 : 1;
  traits->stream_words = On("FAKE_CUDA_NO_WORDS") ? 0 : 1;
  traits->exclusive = On("FAKE_CUDA_EXCLUSIVE") ? 1 : 0;
  traits->concurrent = On("FAKE_CUDA_MPS") ? 1 : 0;
  traits->processors = kProcessors;
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

FakeMemory* OpenFile(const Handle& given) {
  auto opened = FakeMemory::Open(given.device, given.process, given.fd);
  if (!opened) return nullptr;
  const std::scoped_lock lock(TheWorld().mutex);
  return TheWorld().opened.emplace_back(std::move(opened)).get();
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

int CreateSharedEvent(void* self, void** event, ha_cuda_handle* handle, ha_cuda_error* error) {
  void* memory = nullptr;
  if (Allocate(self, sizeof(FakeEvent), &memory, error) != 0) return 1;
  *event = new (Real(memory)) FakeEvent;
  return ShareMemory(self, memory, handle, error);
}

int OpenEvent(void*, const ha_cuda_handle* handle, void** event, ha_cuda_error* error) {
  Handle given{};
  std::memcpy(&given, handle->bytes, sizeof given);
  if (given.process == getpid()) return Fail(error, "it is this process's own (fake)");
  const FakeMemory* const opened = OpenFile(given);
  if (opened == nullptr) return Fail(error, "that process is gone (fake)");
  *event = opened->Real(given.offset);
  return 0;
}

int WriteWord(void*, void* stream, uint32_t* word, uint32_t value, ha_cuda_error* error) {
  if (!IsPinned(word, sizeof *word)) return Fail(error, "a word that is not pinned (fake)");
  StreamOf(stream).Put([=] { std::atomic_ref(*word).store(value, std::memory_order_release); });
  return 0;
}

int AwaitWord(void*, void* stream, uint32_t* word, uint32_t value, ha_cuda_error* error) {
  if (!IsPinned(word, sizeof *word)) return Fail(error, "a word that is not pinned (fake)");
  StreamOf(stream).PutWait(
      [=] {
        const uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
        return static_cast<int32_t>(now - value) >= 0;
      },
      TheWorld().waits);
  return 0;
}

int RunProgram(void*, void* stream, const ha_cuda_program* program, ha_cuda_error* error) {
  using horoacc::cuda::KernelHeader;
  if (!horoacc::cuda::IsProgram(program->image, program->bytes))
    return Fail(error, "no program (fake)");
  const auto& header = *static_cast<const KernelHeader*>(program->image);
  if (header.lanes * header.channels > kProcessors) return Fail(error, "too many blocks (fake)");
  if (!IsPinned(program->watch, sizeof *program->watch))
    return Fail(error, "a watch that is not pinned (fake)");
  FakeProgram fake;
  fake.image = std::make_shared<std::byte[]>(program->bytes);
  for (uint32_t rank = 0; rank < header.ranks; ++rank) {
    fake.call.input[rank] = static_cast<const char*>(Real(program->inputs[rank]));
    fake.call.output[rank] = static_cast<char*>(Real(program->outputs[rank]));
    fake.call.workspace[rank] = static_cast<char*>(Real(program->workspaces[rank]));
  }
  fake.call.call = program->call;
  fake.rank = program->rank;
  fake.watch = program->watch;
  // What the GPU has of it counts; the header alone travels with the launch.
  std::memcpy(fake.image.get(), program->image, sizeof header);
  const auto* const uploaded = static_cast<const std::byte*>(Real(program->uploaded));
  StreamOf(stream).Put([fake, uploaded, bytes = program->bytes] {
    World& world = TheWorld();
    std::copy(uploaded + sizeof(KernelHeader), uploaded + bytes,
              fake.image.get() + sizeof(KernelHeader));
    world.waits.fetch_add(1);
    RunProgram(fake);
    world.waits.fetch_sub(1);
  });
  return 0;
}

constexpr ha_cuda_plugin kPlugin = {.version = HA_CUDA_PLUGIN_VERSION,
                                    .open = Open,
                                    .close = Close,
                                    .reduce = Reduce,
                                    .pack = Pack,
                                    .pin = Pin,
                                    .unpin = Unpin,
                                    .create_stream = CreateStream,
                                    .create_event = CreateEvent,
                                    .destroy_event = DestroyEvent,
                                    .record = Record,
                                    .wait = Wait,
                                    .is_done = IsDone,
                                    .copy = Copy,
                                    .zero = Zero,
                                    .traits = Traits,
                                    .allocate = Allocate,
                                    .deallocate = Deallocate,
                                    .share_memory = ShareMemory,
                                    .open_memory = OpenMemory,
                                    .close_memory = CloseMemory,
                                    .create_shared_event = CreateSharedEvent,
                                    .open_event = OpenEvent,
                                    .write_word = WriteWord,
                                    .await_word = AwaitWord,
                                    .run_program = RunProgram};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const ha_cuda_plugin* horoacc_cuda_plugin_v4() {
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
  const FakeMemory* const of = MemoryOf(memory);
  return of != nullptr ? of->Real(of->OffsetOf(memory)) : const_cast<void*>(memory);
}

int fake_cuda_device_of(const void* memory) {
  const FakeMemory* const of = MemoryOf(memory);
  return of != nullptr ? of->device() : -1;
}

void* fake_cuda_stream(int) { return new FakeStream; }

void fake_cuda_launch(void* stream, void (*body)(void*), void* argument) {
  StreamOf(stream).Put([=] { body(argument); });
}

void fake_cuda_synchronize(void* stream) { StreamOf(stream).Drain(); }

void* fake_cuda_event() { return new FakeEvent; }

void fake_cuda_event_free(void*) {}

void fake_cuda_record(void* event, void* stream) {
  auto* const recorded = static_cast<FakeEvent*>(event);
  const uint64_t number = ++recorded->recorded;
  StreamOf(stream).Put([=] { recorded->done.store(number); });
}

void fake_cuda_wait(void* stream, void* event) {
  const auto* const awaited = static_cast<const FakeEvent*>(event);
  StreamOf(stream).PutWait(
      [awaited, number = awaited->recorded.load()] { return awaited->Has(number); },
      TheWorld().waits);
}

int fake_cuda_is_done(void* event) {
  const auto* const asked = static_cast<const FakeEvent*>(event);
  return asked->Has(asked->recorded) ? 1 : 0;
}

void fake_cuda_capture(void* stream, int on) { StreamOf(stream).captured = on != 0; }

void fake_cuda_break(int on) { TheWorld().broken = on != 0; }

size_t fake_cuda_unpinned_bytes() { return TheWorld().unpinned_bytes; }

int fake_cuda_waits() { return TheWorld().waits; }

int fake_cuda_most_copies() { return TheWorld().most_copies.exchange(0); }

}  // extern "C"
