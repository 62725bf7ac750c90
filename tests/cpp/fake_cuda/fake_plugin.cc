// The plug-in of the fake GPU: the contract of execute/cuda/cuda_plugin.h.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "fake_cuda/fake_kernels.h"
#include "fake_cuda/fake_peers.h"
#include "fake_cuda/fake_programs.h"
#include "fake_cuda/fake_world.h"

namespace horoacc::testing {
namespace {

// See fake_cuda_hold_copies_to_host.
void AwaitCopyToHost() {
  World& world = TheWorld();
  for (int left = world.copies_to_host_left; left >= 0; left = world.copies_to_host_left) {
    if (left > 0 && world.copies_to_host_left.compare_exchange_strong(left, left - 1)) return;
    if (left == 0) SleepShortly();
  }
}

void CopyNow(void* to, const void* from, size_t bytes) {
  World& world = TheWorld();
  const bool to_device = fake_cuda_device_of(to) >= 0;
  if (!to_device) AwaitCopyToHost();
  const int now = world.copies.fetch_add(1) + 1;
  for (int most = world.most_copies;
       now > most && !world.most_copies.compare_exchange_weak(most, now);) {
  }
  SleepShortly();
  std::memcpy(fake_cuda_real(to), fake_cuda_real(from), bytes);
  world.copies.fetch_sub(1);
  if (to_device) world.bytes_to_device += bytes;
}

int Open(void** self, int device, ha_cuda_error* error) {
  if (device < 0 || device >= FAKE_CUDA_DEVICES) return Fail(error, "no such device (fake)");
  *self = new int(device);
  return 0;
}

void Close(void* self) { delete static_cast<int*>(self); }

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

int Adasum(void*, void* stream, const ha_cuda_adasum* job, ha_cuda_error* error) {
  auto plan = horoacc::cuda::PlanAdasum(*job);
  if (!plan.ok()) return Fail(error, plan.error().message.c_str());
  auto& args = plan.value().args;
  if (args.sums != nullptr && !IsPinned(args.sums, sizeof *args.sums))
    return Fail(error, "sums that are not pinned (fake)");
  for (size_t s = 0; s < job->source_count; ++s) {
    args.source[s] = static_cast<const char*>(Real(args.source[s]));
    args.destination[s] = static_cast<char*>(Real(args.destination[s]));
  }
  StreamOf(stream).Put([plan = plan.value()] { RunAdasum(plan); });
  return 0;
}

int Pack(void*, void* stream, const ha_cuda_pack* job, ha_cuda_error* error) {
  if (TheWorld().broken) return Fail(error, "the GPU has fallen off the bus (fake)");
  std::vector<horoacc::cuda::Tensor> tensors;
  for (size_t t = 0; t < job->tensor_count; ++t) {
    const ha_cuda_tensor& tensor = job->tensors[t];
    tensors.push_back({Real(tensor.from), Real(tensor.to), tensor.count});
  }
  auto* const nonfinite = static_cast<unsigned long long*>(Real(job->nonfinite));
  auto plan = horoacc::cuda::PlanPack({.tensors = tensors,
                                       .from = static_cast<horoacc::DType>(job->from_type),
                                       .to = static_cast<horoacc::DType>(job->to_type),
                                       .factor = job->factor,
                                       .nonfinite = nonfinite});
  if (!plan.ok()) return Fail(error, plan.error().message.c_str());
  StreamOf(stream).Put([plan = std::move(plan.value())] { RunPack(plan); });
  return 0;
}

// FAKE_CUDA_PINS_LITTLE is a device that pins no block of the size of one for copies.
int Pin(void* self, void* memory, size_t bytes, ha_cuda_error* error) {
  const char* const limited = std::getenv("FAKE_CUDA_PINS_LITTLE");
  if (limited != nullptr && std::atoi(limited) == *static_cast<int*>(self) && bytes > 1 << 20)
    return Fail(error, "too much to pin (fake)");
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

// FAKE_CUDA_NO_ZERO is a device that cannot: with it modes other than K can be opened, and K
// cannot.
int Zero(void* self, void* stream, void* memory, size_t bytes, ha_cuda_error* error) {
  const char* const broken = std::getenv("FAKE_CUDA_NO_ZERO");
  if (broken != nullptr && std::atoi(broken) == *static_cast<int*>(self))
    return Fail(error, "no memset (fake)");
  if (fake_cuda_device_of(memory) < 0) return Fail(error, "it is no GPU's (fake)");
  StreamOf(stream).Put([=] { std::memset(Real(memory), 0, bytes); });
  return 0;
}

int RunProgram(void*, void* stream, const ha_cuda_program* program, ha_cuda_error* error) {
  using horoacc::cuda::KernelHeader;
  if (!horoacc::cuda::IsProgram(program->image, program->bytes))
    return Fail(error, "no program (fake)");
  const auto& header = *static_cast<const KernelHeader*>(program->image);
  if (header.lanes * header.channels > FAKE_CUDA_PROCESSORS)
    return Fail(error, "too many blocks (fake)");
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
  // Only the header is a kernel argument; the rest is read from the GPU's memory.
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

int RunOnDevice(void* self, void (*body)(void*), void* argument, ha_cuda_error*) {
  const int before = std::exchange(CurrentDevice(), *static_cast<int*>(self));
  body(argument);
  CurrentDevice() = before;
  return 0;
}

constexpr ha_cuda_plugin kPlugin = {.version = HA_CUDA_PLUGIN_VERSION,
                                    .open = Open,
                                    .close = Close,
                                    .reduce = Reduce,
                                    .pack = Pack,
                                    .adasum = Adasum,
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
                                    .write_words = WriteWords,
                                    .await_words = AwaitWords,
                                    .run_program = RunProgram,
                                    .run_on_device = RunOnDevice};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ha_cuda_plugin* horoacc_cuda_plugin_v8() {
  return &kPlugin;
}

}  // namespace horoacc::testing
