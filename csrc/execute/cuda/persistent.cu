#include <algorithm>
#include <cstring>

#include "execute/cuda/persistent.cuh"

namespace horoacc::cuda {
namespace {

/// What a rank tells the others about its memory.
struct Exported {
  cudaIpcMemHandle_t handle;
  cudaUUID_t gpu;
};
static_assert(sizeof(Exported) == sizeof(ha_cuda_kernel_memory));

constexpr uint64_t kAlign = 512;

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Error Refused(std::string why) {
  return MakeError(ErrorKind::kUnsupported, "persistent kernels: " + std::move(why));
}

cudaError_t OrderAny(const KernelOrder& order) {
  const KernelHeader& header = order.launch.header;
  if (IsFloat(header.type)) return OrderFloats(order);
  return header.scaled ? OrderScaled(order) : OrderNumbers(order);
}

}  // namespace

// What fails here has failed before, and been reported.
Persistent::~Persistent() {
  const CurrentDevice current(device_);
  static_cast<void>(cudaDeviceSynchronize());
  for (void* memory : opened_) static_cast<void>(cudaIpcCloseMemHandle(memory));
  static_cast<void>(cudaFree(program_));
  static_cast<void>(cudaFree(memory_));
  static_cast<void>(cudaFree(report_));
  static_cast<void>(cudaFreeHost(abort_));
  // Left alone, an error would be reported by the next launch.
  static_cast<void>(cudaGetLastError());
}

uint64_t Persistent::input_offset() const { return Aligned(launch_.header.workspace_bytes); }
uint64_t Persistent::output_offset() const {
  return input_offset() + (virtual_ranks() ? 0 : Aligned(launch_.header.input_bytes));
}
uint64_t Persistent::bytes_of_rank() const {
  return output_offset() + (virtual_ranks() ? 0 : Aligned(launch_.header.output_bytes));
}

Status Persistent::Open(const void* program, size_t bytes) {
  if (!IsProgram(program, bytes)) return Refused("these bytes are no program of this build");
  std::memcpy(&launch_.header, program, sizeof launch_.header);
  if (rank_ >= static_cast<int>(launch_.header.ranks)) return Refused("there is no such rank");
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  int processors = 0;
  int cooperative = 0;
  HA_TRY(Check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device_),
               "cudaDeviceGetAttribute"));
  HA_TRY(Check(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device_),
               "cudaDeviceGetAttribute"));
  if (cooperative == 0) return Refused("this GPU cannot promise that all blocks run at once");
  processors_ = static_cast<uint32_t>(processors);
  const uint64_t ranks = virtual_ranks() ? launch_.header.ranks : 1;
  const uint64_t memory = std::max<uint64_t>(bytes_of_rank() * ranks, kAlign);
  HA_TRY(Check(cudaMalloc(reinterpret_cast<void**>(&program_), bytes), "cudaMalloc"));
  HA_TRY(Check(cudaMalloc(reinterpret_cast<void**>(&memory_), memory), "cudaMalloc"));
  HA_TRY(Check(cudaMalloc(reinterpret_cast<void**>(&report_), sizeof *report_), "cudaMalloc"));
  HA_TRY(Check(cudaHostAlloc(reinterpret_cast<void**>(&abort_), sizeof *abort_,
                             cudaHostAllocMapped | cudaHostAllocPortable),
               "cudaHostAlloc"));
  *abort_ = 0;
  HA_TRY(Check(cudaMemcpy(program_, program, bytes, cudaMemcpyHostToDevice), "cudaMemcpy"));
  HA_TRY(Check(cudaMemset(memory_, 0, memory), "cudaMemset"));
  HA_TRY(Check(cudaMemset(report_, 0, sizeof *report_), "cudaMemset"));
  void* abort = nullptr;
  HA_TRY(Check(cudaHostGetDevicePointer(&abort, abort_, 0), "cudaHostGetDevicePointer"));
  // Other streams may begin before the default stream has ended.
  HA_TRY(Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  launch_.watch = {static_cast<uint32_t*>(abort), report_, 0};
  launch_.program = program_;
  launch_.first_rank = virtual_ranks() ? 0 : static_cast<uint32_t>(rank_);
  launch_.here = static_cast<uint32_t>(ranks);
  for (uint32_t r = 0; r < ranks; ++r) {
    launch_.call.workspace[launch_.first_rank + r] = memory_ + r * bytes_of_rank();
  }
  connected_ = virtual_ranks() || launch_.header.ranks == 1;
  return {};
}

Status Persistent::Export(ha_cuda_kernel_memory* memory) const {
  if (virtual_ranks()) return Refused("virtual ranks have nothing to export");
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  Exported exported{};
  HA_TRY(Check(cudaIpcGetMemHandle(&exported.handle, memory_), "cudaIpcGetMemHandle"));
  cudaDeviceProp properties{};
  HA_TRY(Check(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties"));
  exported.gpu = properties.uuid;
  std::memcpy(memory, &exported, sizeof exported);
  return {};
}

Status Persistent::Import(const ha_cuda_kernel_memory* memories) {
  if (virtual_ranks()) return Refused("virtual ranks have nothing to import");
  if (connected_) return Refused("every rank's memory is known already");
  const uint32_t ranks = launch_.header.ranks;
  std::vector<Exported> of(ranks);
  std::memcpy(of.data(), memories, ranks * sizeof(Exported));
  for (uint32_t a = 0; a < ranks; ++a) {
    for (uint32_t b = 0; b < a; ++b) {
      if (std::memcmp(&of[a].gpu, &of[b].gpu, sizeof(cudaUUID_t)) != 0) continue;
      return Refused("ranks " + std::to_string(b) + " and " + std::to_string(a) +
                     " share a GPU, where kernels of two processes never run at once");
    }
  }
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (rank == launch_.first_rank) continue;
    void* memory = nullptr;
    HA_TRY(Check(cudaIpcOpenMemHandle(&memory, of[rank].handle, cudaIpcMemLazyEnablePeerAccess),
                 "cudaIpcOpenMemHandle"));
    opened_.push_back(memory);
    launch_.call.workspace[rank] = static_cast<char*>(memory);
  }
  connected_ = true;
  return {};
}

Status Persistent::Buffers(void** input, void** output) const {
  if (virtual_ranks()) return Refused("virtual ranks have no buffers of their own");
  *input = memory_ + input_offset();
  *output = memory_ + output_offset();
  return {};
}

Status Persistent::SetAddresses(const void* const* inputs, void* const* outputs) {
  const bool given = inputs != nullptr && outputs != nullptr;
  if (given != virtual_ranks()) {
    return Refused(given ? "a rank in a process has buffers of its own"
                         : "inputs and outputs of virtual ranks are missing");
  }
  KernelCall& call = launch_.call;
  for (uint32_t rank = 0; rank < launch_.header.ranks; ++rank) {
    call.input[rank] =
        given ? static_cast<const char*>(inputs[rank]) : call.workspace[rank] + input_offset();
    call.output[rank] =
        given ? static_cast<char*>(outputs[rank]) : call.workspace[rank] + output_offset();
  }
  return {};
}

Status Persistent::Launch(cudaStream_t stream, const void* const* inputs, void* const* outputs,
                          double seconds) {
  if (!connected_) return Refused("the memory of the other ranks is not known yet");
  if (std::atomic_ref(*abort_).load() != 0) return Refused("they were aborted");
  if (!(seconds >= 0 && seconds < 1e9)) return Refused("a launch cannot take that many seconds");
  HA_TRY(SetAddresses(inputs, outputs));
  if (launch_.header.windows == 0) return {};
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  HA_TRY(Check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
  if (capture != cudaStreamCaptureStatusNone) {
    return Refused("every launch has a number, so they cannot be captured into a CUDA graph");
  }
  launch_.watch.deadline = static_cast<unsigned long long>(seconds * 1e9);
  Residency residency;
  const cudaError_t code = OrderAny({launch_, processors_, stream, &residency});
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  HA_TRY(Check(code, "the launch of a persistent kernel"));
  if (residency.wanted > residency.resident) {
    return Refused(std::to_string(residency.wanted) +
                   " blocks wait for each other, and this GPU "
                   "holds " +
                   std::to_string(residency.resident) + " at once; use fewer channels");
  }
  ++launch_.call.call;
  return {};
}

void Persistent::Abort() { std::atomic_ref(*abort_).store(1); }

Status Persistent::Outcome() const {
  const uint32_t abort = std::atomic_ref(*abort_).load();
  if (abort == 0) return {};
  const CurrentDevice current(device_);
  HA_TRY(current.status());
  unsigned long long report = 0;
  HA_TRY(Check(cudaMemcpy(&report, report_, sizeof report, cudaMemcpyDeviceToHost), "cudaMemcpy"));
  std::string where;
  if (report != 0) {
    where = "; rank " + std::to_string(RankGivenUp(report)) + " waited in lane " +
            std::to_string(LaneGivenUp(report)) + " at step " + std::to_string(StepGivenUp(report));
  }
  return MakeError(abort == 1 ? ErrorKind::kAborted : ErrorKind::kTimeout,
                   (abort == 1 ? "a persistent kernel was aborted"
                               : "a persistent kernel was past its deadline") +
                       where);
}

}  // namespace horoacc::cuda
