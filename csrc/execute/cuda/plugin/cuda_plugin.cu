// The plug-in's entry: checks what it is given, puts tables where the GPU reads them, launches.
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "execute/cuda/cuda_plugin.h"
#include "execute/cuda/plugin/current_device.cuh"
#include "execute/cuda/plugin/guarded.cuh"
#include "execute/cuda/plugin/launch.h"
#include "execute/cuda/plugin/peers.h"
#include "execute/cuda/plugin/programs.cuh"
#include "execute/cuda/plugin/streams.h"

namespace horoacc::cuda {
namespace {

/// A place for a table of tensors: pinned memory, the device's copy, and when the host may write
/// again.
class Table {
 public:
  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  // What fails here has failed before, and been reported.
  ~Table() {
    if (copied_ != nullptr) static_cast<void>(cudaEventDestroy(copied_));
    Retire();
    for (const auto& [host, device] : retired_) {
      static_cast<void>(cudaFreeHost(host));
      static_cast<void>(cudaFree(device));
    }
  }

  /// Enqueues the copy and gives the device's address.
  [[nodiscard]] Result<const PackItem*> Fill(const std::vector<PackItem>& items,
                                             cudaStream_t stream) {
    HA_TRY(Prepare(items.size()));
    std::memcpy(host_, items.data(), items.size() * sizeof(PackItem));
    HA_TRY(Check(cudaMemcpyAsync(device_, host_, items.size() * sizeof(PackItem),
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync"));
    return device_;
  }
  /// After the kernel that reads it has been enqueued.
  [[nodiscard]] Status Close(cudaStream_t stream) {
    return Check(cudaEventRecord(copied_, stream), "cudaEventRecord");
  }

 private:
  Status Prepare(size_t items) {
    if (copied_ == nullptr) {
      HA_TRY(Check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "cudaEventCreate"));
    } else {
      HA_TRY(Check(cudaEventSynchronize(copied_), "a pack before this one"));
    }
    if (items <= capacity_) return {};
    Retire();
    size_t capacity = 1024;
    while (capacity < items) capacity *= 2;
    HA_TRY(Check(cudaMallocHost(reinterpret_cast<void**>(&host_), capacity * sizeof(PackItem)),
                 "cudaMallocHost"));
    HA_TRY(Check(cudaMalloc(reinterpret_cast<void**>(&device_), capacity * sizeof(PackItem)),
                 "cudaMalloc"));
    capacity_ = capacity;
    return {};
  }

  // To free memory is to wait for the whole GPU, with all that waits there for other ranks. All
  // tables that were too small take no more than the one that was not.
  void Retire() {
    if (host_ != nullptr) retired_.emplace_back(host_, device_);
    host_ = nullptr;
    device_ = nullptr;
    capacity_ = 0;
  }

  PackItem* host_ = nullptr;
  PackItem* device_ = nullptr;
  size_t capacity_ = 0;
  std::vector<std::pair<PackItem*, PackItem*>> retired_;
  cudaEvent_t copied_ = nullptr;
};

class Device {
 public:
  explicit Device(int number) : number_(number), streams_(number), peers_(number) {}

  Status Open() {
    const CurrentDevice current(number_);
    HA_TRY(current.status());
    int processors = 0;
    HA_TRY(Check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, number_),
                 "cudaDeviceGetAttribute"));
    processors_ = static_cast<uint32_t>(processors);
    return peers_.Open();
  }

  [[nodiscard]] Streams& streams() { return streams_; }
  [[nodiscard]] const Peers& peers() const { return peers_; }

  void Close() {
    const CurrentDevice current(number_);
    // A device that is lost has nothing left to wait for.
    static_cast<void>(cudaDeviceSynchronize());
    for (std::unique_ptr<Table>& table : tables_) table.reset();
    streams_.Close();
  }

  Status Reduce(cudaStream_t stream, const ReduceJob& job) {
    HA_ASSIGN(const ReducePlan plan, PlanReduce(job));
    if (job.count == 0) return {};
    const CurrentDevice current(number_);
    HA_TRY(current.status());
    return Check(LaunchReduce(plan, {stream, processors_}), "the launch of a reduction");
  }

  Status Pack(cudaStream_t stream, const PackJob& job) {
    HA_ASSIGN(const PackPlan plan, PlanPack(job));
    if (plan.items.empty()) return {};
    const CurrentDevice current(number_);
    HA_TRY(current.status());
    const Place place{stream, processors_};
    if (plan.items.size() <= kInlineItems) {
      return Check(LaunchPack(plan, nullptr, place), "the launch of a pack");
    }
    std::unique_ptr<Table>& table = tables_[packs_++ % kTables];
    if (!table) table = std::make_unique<Table>();
    HA_ASSIGN(const PackItem* const items, table->Fill(plan.items, stream));
    const Status launched = Check(LaunchPack(plan, items, place), "the launch of a pack");
    HA_TRY(table->Close(stream));
    return launched;
  }

  Status RunHere(void (*body)(void*), void* argument) const {
    const CurrentDevice current(number_);
    HA_TRY(current.status());
    body(argument);
    return {};
  }

  Status Run(cudaStream_t stream, const ha_cuda_program& program) const {
    const CurrentDevice current(number_);
    HA_TRY(current.status());
    return LaunchProgram(program, {stream, processors_});
  }

 private:
  static constexpr size_t kTables = 16;

  const int number_;
  Streams streams_;
  Peers peers_;
  uint32_t processors_ = 1;
  size_t packs_ = 0;
  std::unique_ptr<Table> tables_[kTables];
};

bool IsType(int type) { return type >= 0 && type < kDTypeCount; }

Status CheckNumbers(bool good) {
  if (good) return {};
  return MakeError(ErrorKind::kUnsupported, "the CUDA kernels: no such type or operation");
}

int OpenDevice(void** self, int device, ha_cuda_error* error) {
  return Guarded(error, [&]() -> Status {
    auto opened = std::make_unique<Device>(device);
    HA_TRY(opened->Open());
    *self = opened.release();
    return {};
  });
}

void CloseDevice(void* self) {
  const std::unique_ptr<Device> device(static_cast<Device*>(self));
  device->Close();
}

int RunReduce(void* self, void* stream, const ha_cuda_reduce* job, ha_cuda_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_TRY(CheckNumbers(IsType(job->type) && job->op >= 0 && job->op < kReduceOpCount));
    return static_cast<Device*>(self)->Reduce(
        static_cast<cudaStream_t>(stream),
        {.sources = {job->sources, job->source_count},
         .destinations = {job->destinations, job->destination_count},
         .count = job->count,
         .type = static_cast<DType>(job->type),
         .op = static_cast<ReduceOp>(job->op),
         .scale = {job->pre, job->post, job->divisor}});
  });
}

int RunPack(void* self, void* stream, const ha_cuda_pack* job, ha_cuda_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_TRY(CheckNumbers(IsType(job->from_type) && IsType(job->to_type)));
    std::vector<Tensor> tensors;
    tensors.reserve(job->tensor_count);
    for (size_t i = 0; i < job->tensor_count; ++i) {
      tensors.push_back({job->tensors[i].from, job->tensors[i].to, job->tensors[i].count});
    }
    return static_cast<Device*>(self)->Pack(static_cast<cudaStream_t>(stream),
                                            {.tensors = tensors,
                                             .from = static_cast<DType>(job->from_type),
                                             .to = static_cast<DType>(job->to_type),
                                             .factor = job->factor,
                                             .nonfinite = job->nonfinite});
  });
}

Streams& StreamsOf(void* self) { return static_cast<Device*>(self)->streams(); }

int Pin(void* self, void* memory, size_t bytes, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).Pin(memory, bytes); });
}

void Unpin(void* self, void* memory) { StreamsOf(self).Unpin(memory); }

int CreateStream(void* self, void** stream, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).CreateStream(stream); });
}

int CreateEvent(void* self, void** event, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).CreateEvent(event); });
}

void DestroyEvent(void* self, void* event) { StreamsOf(self).DestroyEvent(event); }

int Record(void* self, void* event, void* stream, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).Record(event, stream); });
}

int Wait(void* self, void* stream, void* event, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).Wait(stream, event); });
}

int IsDone(void* self, void* event, int* done, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).IsDone(event, done); });
}

int Copy(void* self, void* stream, void* to, const void* from, size_t bytes, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).Copy(stream, to, from, bytes); });
}

int Zero(void* self, void* stream, void* memory, size_t bytes, ha_cuda_error* error) {
  return Guarded(error, [&] { return StreamsOf(self).Zero(stream, memory, bytes); });
}

const Peers& PeersOf(void* self) { return static_cast<Device*>(self)->peers(); }

int Traits(void* self, ha_cuda_traits* traits, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).Traits(traits); });
}

int Allocate(void* self, size_t bytes, void** memory, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).Allocate(bytes, memory); });
}

void Deallocate(void* self, void* memory) { PeersOf(self).Deallocate(memory); }

int ShareMemory(void* self, void* memory, ha_cuda_handle* handle, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).ShareMemory(memory, handle); });
}

int OpenMemory(void* self, const ha_cuda_handle* handle, void** memory, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).OpenMemory(*handle, memory); });
}

void CloseMemory(void* self, void* memory) { PeersOf(self).CloseMemory(memory); }

int CreateSharedEvent(void* self, void** event, ha_cuda_handle* handle, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).CreateSharedEvent(event, handle); });
}

int OpenEvent(void* self, const ha_cuda_handle* handle, void** event, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).OpenEvent(*handle, event); });
}

int WriteWord(void* self, void* stream, uint32_t* word, uint32_t value, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).WriteWord(stream, word, value); });
}

int AwaitWord(void* self, void* stream, uint32_t* word, uint32_t value, ha_cuda_error* error) {
  return Guarded(error, [&] { return PeersOf(self).AwaitWord(stream, word, value); });
}

int RunProgram(void* self, void* stream, const ha_cuda_program* program, ha_cuda_error* error) {
  return Guarded(error, [&] {
    return static_cast<Device*>(self)->Run(static_cast<cudaStream_t>(stream), *program);
  });
}

int RunOnDevice(void* self, void (*body)(void*), void* argument, ha_cuda_error* error) {
  return Guarded(error, [&] { return static_cast<Device*>(self)->RunHere(body, argument); });
}

constexpr ha_cuda_plugin kPlugin = {.version = HA_CUDA_PLUGIN_VERSION,
                                    .open = OpenDevice,
                                    .close = CloseDevice,
                                    .reduce = RunReduce,
                                    .pack = RunPack,
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
                                    .run_program = RunProgram,
                                    .run_on_device = RunOnDevice};

}  // namespace
}  // namespace horoacc::cuda

extern "C" __attribute__((visibility("default"))) const ha_cuda_plugin* horoacc_cuda_plugin_v5() {
  return &horoacc::cuda::kPlugin;
}
