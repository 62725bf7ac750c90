// The plug-in's entry: makes the calling thread's device the right one, checks jobs, copies tables
// of tensors to the GPU and launches.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "execute/cuda/plugin/calls.h"
#include "execute/cuda/plugin/current_device.cuh"
#include "execute/cuda/plugin/pinned_ranges.h"

namespace horoacc::cuda {
namespace {

/// Memory for a table of tensors: pinned memory, the device's copy, and an event that says when the
/// host may write again.
class Table {
 public:
  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table() {
    if (copied_ != nullptr) Forget(cudaEventDestroy(copied_));
    Retire();
    for (const auto& [host, device] : retired_) {
      Forget(cudaFreeHost(host));
      Forget(cudaFree(device));
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
  /// To be called after the kernel that reads the table has been enqueued. If nobody can tell when
  /// it has run, the memory is not written again.
  [[nodiscard]] Status Close(cudaStream_t stream) {
    Status recorded = Check(cudaEventRecord(copied_, stream), "cudaEventRecord");
    is_read_ = recorded.ok();
    if (!is_read_) Retire();
    return recorded;
  }

 private:
  Status Prepare(size_t items) {
    if (copied_ == nullptr)
      HA_TRY(Check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "cudaEventCreate"));
    if (is_read_)
      HA_TRY(Check(cudaEventSynchronize(copied_), "cudaEventSynchronize of a pack before"));
    is_read_ = false;
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

  // Freeing memory waits for the whole GPU, whose kernels may wait for other ranks. All tables that
  // were too small take no more memory than the one that was not.
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
  bool is_read_ = false;  ///< perhaps; until `copied_` is done
};

Status CheckNumbers(bool good) {
  if (good) return {};
  return MakeError(ErrorKind::kUnsupported, "the CUDA kernels: no such type or operation");
}

bool IsType(int type) { return type >= 0 && type < kDTypeCount; }

/// The state of a device in use. All calls but `number` need it to be the current one.
class Device {
 public:
  explicit Device(int number) : number_(number) {}
  [[nodiscard]] int number() const { return number_; }

  Status Open() {
    int processors = 0;
    HA_TRY(Check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, number_),
                 "cudaDeviceGetAttribute"));
    occupancy_.emplace(static_cast<uint32_t>(processors));
    return {};
  }

  void Close() {
    // A device that is lost has nothing left to wait for.
    Forget(cudaDeviceSynchronize());
    for (std::unique_ptr<Table>& table : tables_) table.reset();
    for (const cudaStream_t stream : streams_) Forget(cudaStreamDestroy(stream));
  }

  Status CreateStream(void** stream) {
    int least = 0;
    int greatest = 0;
    HA_TRY(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                 "cudaDeviceGetStreamPriorityRange"));
    cudaStream_t created = nullptr;
    HA_TRY(Check(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, greatest),
                 "cudaStreamCreateWithPriority"));
    const std::scoped_lock lock(mutex_);
    streams_.push_back(created);
    *stream = created;
    return {};
  }

  Status Reduce(void* stream, const ha_cuda_reduce* job) {
    HA_TRY(CheckNumbers(IsType(job->type) && job->op >= 0 && job->op < kReduceOpCount));
    HA_ASSIGN(const ReducePlan plan,
              PlanReduce({.sources = {job->sources, job->source_count},
                          .destinations = {job->destinations, job->destination_count},
                          .count = job->count,
                          .type = static_cast<DType>(job->type),
                          .op = static_cast<ReduceOp>(job->op),
                          .scale = {job->pre, job->post, job->divisor}}));
    if (job->count == 0) return {};
    return Check(LaunchReduce(plan, On(stream)), "the launch of a reduction");
  }

  Status Pack(void* stream, const ha_cuda_pack* job) {
    HA_TRY(CheckNumbers(IsType(job->from_type) && IsType(job->to_type)));
    std::vector<Tensor> tensors;
    tensors.reserve(job->tensor_count);
    for (const ha_cuda_tensor& tensor : std::span(job->tensors, job->tensor_count))
      tensors.push_back({tensor.from, tensor.to, tensor.count});
    HA_ASSIGN(const PackPlan plan, PlanPack({.tensors = tensors,
                                             .from = static_cast<DType>(job->from_type),
                                             .to = static_cast<DType>(job->to_type),
                                             .factor = job->factor,
                                             .nonfinite = job->nonfinite}));
    if (plan.items.empty()) return {};
    const Place place = On(stream);
    if (plan.items.size() <= kInlineItems)
      return Check(LaunchPack(plan, nullptr, place), "the launch of a pack");
    std::unique_ptr<Table>& table = tables_[packs_++ % kTables];
    if (!table) table = std::make_unique<Table>();
    HA_ASSIGN(const PackItem* const items, table->Fill(plan.items, place.stream));
    Status launched = Check(LaunchPack(plan, items, place), "the launch of a pack");
    HA_TRY(table->Close(place.stream));
    return launched;
  }

  Status Adasum(void* stream, const ha_cuda_adasum* job) {
    HA_TRY(CheckNumbers(IsType(job->type)));
    HA_ASSIGN(AdasumPlan plan, PlanAdasum(*job));
    if (job->count == 0) return {};
    if (plan.args.sums != nullptr) {
      HA_ASSIGN(void* const sums, pinned_.AddressOf(plan.args.sums));
      plan.args.sums = static_cast<double*>(sums);
    }
    return Check(LaunchAdasum(plan, On(stream)), "the launch of an adasum");
  }

  Status RunProgram(void* stream, const ha_cuda_program* program) {
    HA_ASSIGN(void* const watch, pinned_.AddressOf(program->watch));
    return LaunchProgram(*program, static_cast<ha_cuda_watch*>(watch), On(stream));
  }

  Status Pin(void* memory, size_t bytes) { return pinned_.Pin(memory, bytes); }
  void Unpin(void* memory) { pinned_.Unpin(memory); }

  Status WriteWords(void* stream, uint32_t* const* words, size_t count, uint32_t value) {
    HA_ASSIGN(const std::vector<void*> there, AddressesOf({words, count}));
    return cuda::WriteWords(stream, there, value);
  }

  Status AwaitWords(void* stream, uint32_t* const* words, size_t count, uint32_t value) {
    HA_ASSIGN(const std::vector<void*> there, AddressesOf({words, count}));
    return cuda::AwaitWords(stream, there, value);
  }

 private:
  static constexpr size_t kTables = 16;

  [[nodiscard]] Result<std::vector<void*>> AddressesOf(std::span<uint32_t* const> words) const {
    std::vector<void*> there;
    for (const uint32_t* word : words) {
      HA_ASSIGN(void* const address, pinned_.AddressOf(word));
      there.push_back(address);
    }
    return there;
  }
  [[nodiscard]] Place On(void* stream) { return {static_cast<cudaStream_t>(stream), *occupancy_}; }

  const int number_;
  PinnedRanges pinned_;
  std::optional<Occupancy> occupancy_;  ///< from Open on
  size_t packs_ = 0;
  std::unique_ptr<Table> tables_[kTables];
  std::mutex mutex_;
  std::vector<cudaStream_t> streams_;  ///< under mutex_
};

Status RunOnDevice(void (*body)(void*), void* argument) {
  body(argument);
  return {};
}

int Report(const Status& status, ha_cuda_error* error) {
  if (status.ok()) return 0;
  std::snprintf(error->message, sizeof(error->message), "%s", status.error().message.c_str());
  return 1;
}

/// Calls `body` with the device as the thread's current one. No exception leaves the plug-in.
template <typename Body>
int Guarded(int device, ha_cuda_error* error, Body body) {
  try {
    const CurrentDevice current(device);
    Status status = current.status();
    return Report(status.ok() ? body() : status, error);
  } catch (const std::exception& failure) {
    return Report(MakeError(ErrorKind::kSystem, failure.what()), error);
  }
}

/// The contract's function for a call of calls.h, or for a method of Device.
template <auto kCall, typename Type = decltype(kCall)>
struct Entry;

template <auto kCall, typename... Args>
struct Entry<kCall, Status (*)(Args...)> {
  static int Run(void* self, Args... args, ha_cuda_error* error) {
    return Guarded(static_cast<Device*>(self)->number(), error, [&] { return kCall(args...); });
  }
};

template <auto kCall, typename... Args>
struct Entry<kCall, Status (Device::*)(Args...)> {
  static int Run(void* self, Args... args, ha_cuda_error* error) {
    auto* const device = static_cast<Device*>(self);
    return Guarded(device->number(), error, [&] { return (device->*kCall)(args...); });
  }
};

template <auto kCall>
struct Entry<kCall, void (*)(void*)> {
  static void Run(void* self, void* argument) {
    const CurrentDevice current(static_cast<Device*>(self)->number());
    kCall(argument);
  }
};

template <auto kCall>
struct Entry<kCall, void (Device::*)(void*)> {
  static void Run(void* self, void* argument) {
    auto* const device = static_cast<Device*>(self);
    const CurrentDevice current(device->number());
    (device->*kCall)(argument);
  }
};

int OpenDevice(void** self, int device, ha_cuda_error* error) {
  return Guarded(device, error, [&]() -> Status {
    auto opened = std::make_unique<Device>(device);
    HA_TRY(opened->Open());
    *self = opened.release();
    return {};
  });
}

void CloseDevice(void* self) {
  const std::unique_ptr<Device> device(static_cast<Device*>(self));
  const CurrentDevice current(device->number());
  device->Close();
}

constexpr ha_cuda_plugin kPlugin = {.version = HA_CUDA_PLUGIN_VERSION,
                                    .open = OpenDevice,
                                    .close = CloseDevice,
                                    .reduce = Entry<&Device::Reduce>::Run,
                                    .pack = Entry<&Device::Pack>::Run,
                                    .adasum = Entry<&Device::Adasum>::Run,
                                    .pin = Entry<&Device::Pin>::Run,
                                    .unpin = Entry<&Device::Unpin>::Run,
                                    .create_stream = Entry<&Device::CreateStream>::Run,
                                    .create_event = Entry<CreateEvent>::Run,
                                    .destroy_event = Entry<DestroyEvent>::Run,
                                    .record = Entry<Record>::Run,
                                    .wait = Entry<Wait>::Run,
                                    .is_done = Entry<IsDone>::Run,
                                    .copy = Entry<Copy>::Run,
                                    .zero = Entry<Zero>::Run,
                                    .traits = Entry<Traits>::Run,
                                    .allocate = Entry<Allocate>::Run,
                                    .deallocate = Entry<Deallocate>::Run,
                                    .share_memory = Entry<ShareMemory>::Run,
                                    .open_memory = Entry<OpenMemory>::Run,
                                    .close_memory = Entry<CloseMemory>::Run,
                                    .write_words = Entry<&Device::WriteWords>::Run,
                                    .await_words = Entry<&Device::AwaitWords>::Run,
                                    .run_program = Entry<&Device::RunProgram>::Run,
                                    .run_on_device = Entry<RunOnDevice>::Run};

}  // namespace
}  // namespace horoacc::cuda

extern "C" __attribute__((visibility("default"))) const ha_cuda_plugin* horoacc_cuda_plugin_v8() {
  return &horoacc::cuda::kPlugin;
}
