#include "runtime/engine/device_calls.h"

#include <algorithm>

#include "execute/cuda/host/composed_run.h"
#include "execute/cuda/host/device_pipeline.h"
#include "negotiate/multi_host/eager.h"
#include "runtime/engine/gpu_reductions.h"

namespace horoacc {
namespace {

/// Does this rank's call read its input?
bool Gives(Collective collective, bool is_root) {
  const bool only_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
  return is_root || !only_root;
}

bool IsEmpty(const Request& request) {
  return std::ranges::all_of(request.tensors,
                             [](const TensorMeta& tensor) { return tensor.bytes() == 0; });
}

// On several hosts GPUs add up inside each, and the rest of the work is ComposedRun's.
bool StaysOnHostsGpus(const MultiHostSet& set, const Request& request) {
  return request.collective == Collective::kAllreduce && set.composes() &&
         set.eager().BytesOf(request) == 0 &&
         std::ranges::all_of(request.tensors, [&](const TensorMeta& tensor) {
           return cuda::ComposedRun::Fits(tensor.type, request.op,
                                          set.ScaleOf(request, tensor.type), set.wide());
         });
}

}  // namespace

DeviceCalls::DeviceCalls(Job& job)
    : job_(job),
      gpus_(job.settings.cuda_plugin, {[this](size_t bytes) { return job_.blocks.Allocate(bytes); },
                                       [this](void* memory) { job_.blocks.Free(memory); }}) {}

Status DeviceCalls::CheckMode(const ProcessSet& set) const {
  const GpuMode wanted = job_.settings.gpu_mode;
  const bool inside_hosts =
      wanted == GpuMode::kLeader || wanted == GpuMode::kStream || wanted == GpuMode::kKernel;
  if (!set.multi_host || !inside_hosts) return {};
  return cuda::RefuseMode(wanted, "the ranks do not all share a host");
}

// Otherwise the tensors are copied to the host at once. Those that stay may still be copied later,
// if the ranks do not agree on a mode in which GPUs reduce.
bool DeviceCalls::StaysOnGpu(ProcessSet& set, const Request& request, int gpu) const {
  if (job_.settings.check_numerics) return false;
  const bool spans_hosts = set.multi_host && job_.settings.gpu_mode == GpuMode::kNccl;
  if (set.multi_host && !spans_hosts && !StaysOnHostsGpus(*set.multi_host, request)) return false;
  const GpuMode agreed = set.gpu_mode.load(std::memory_order_relaxed);
  const GpuMode mode = agreed == GpuMode::kAuto ? job_.settings.gpu_mode : agreed;
  if (mode == GpuMode::kCpuReduce ||
      !FitsGpuMode(request, mode, static_cast<uint32_t>(set.ranks.size()))) {
    return false;
  }
  if (spans_hosts) {
    // Its communicator has one GPU on each rank. Other hosts see only whether a call stays.
    int first = -1;
    return !IsEmpty(request) && (set.nccl_gpu.compare_exchange_strong(first, gpu) || first == gpu);
  }
  return !Reduces(request.collective) ||
         std::ranges::all_of(request.tensors, [&](const TensorMeta& tensor) {
           return cuda::CanReduce(tensor.type, request.op);
         });
}

Status DeviceCalls::Begin(ProcessSet& set, CollectiveEntry& entry, const Submission& submission) {
  const Request& request = entry.request;
  if (IsBarrier(request.collective)) return {};
  const bool is_root = request.root == job_.rank();
  if (request.collective == Collective::kAllreduce) {
    for (size_t t = 0; t < entry.tensors.size(); ++t) {
      if (entry.tensors[t].output || request.tensors[t].bytes() == 0) continue;
      return MakeError(ErrorKind::kInvalid, "no memory on the GPU was given for its result");
    }
  }
  HA_ASSIGN(cuda::Gpus::Place place, gpus_.Find(submission.device->number));
  std::vector<cuda::DeviceTensor> tensors;
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    const bool allreduce = request.collective == Collective::kAllreduce;
    const bool broadcast = request.collective == Collective::kBroadcast;
    cuda::DeviceTensor tensor;
    tensor.input = entry.tensors[t].input;
    tensor.output = entry.tensors[t].output;
    tensor.input_bytes = request.tensors[t].bytes();
    if (request.collective == Collective::kScatter) tensor.input_bytes *= set.ranks.size();
    tensor.reads_input = Gives(request.collective, is_root);
    tensor.in_place = allreduce || (broadcast && tensor.output == tensor.input);
    tensor.writes_output = !(broadcast && is_root && tensor.in_place);
    tensors.push_back(tensor);
  }
  HA_ASSIGN(entry.device, cuda::DeviceCall::Begin(std::move(place), submission.device->stream,
                                                  tensors, job_.settings.gpu_chunk_bytes));
  if (!StaysOnGpu(set, request, submission.device->number)) {
    HA_ASSIGN(const uint64_t fetched, entry.device->CopyToHost());
    job_.counters.gpu_bytes.fetch_add(fetched, std::memory_order_relaxed);
  }
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    entry.tensors[t].input = entry.device->input(t);
    entry.tensors[t].output = entry.device->output(t);
  }
  return {};
}

bool DeviceCalls::IsPipelined(const Request& request) const {
  if (!request.on_gpu || request.collective != Collective::kAllreduce) return false;
  if (request.op == ReduceOp::kAdasum) return false;
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : request.tensors) bytes += tensor.bytes();
  return bytes > std::max(job_.settings.gpu_chunk_bytes, job_.settings.last_arriver_bytes);
}

// A pipelined call is published once its first chunk has come, unless a thread reads all of it
// before it is reduced.
Result<bool> DeviceCalls::MayBePublished(const ProcessSet& set, CollectiveEntry& entry) const {
  const bool in_sight = std::ranges::all_of(
      entry.tensors, [&](const EntryTensor& tensor) { return job_.arena->Contains(tensor.input); });
  if (!in_sight || job_.settings.check_numerics || !IsPipelined(entry.request) ||
      (set.multi_host && set.multi_host->eager().BytesOf(entry.request) > 0)) {
    return entry.device->AreInputsOnHost();
  }
  return entry.device->IsFirstChunkOnHost();
}

std::unique_ptr<ChunkPipeline> DeviceCalls::PipelineOf(
    std::span<const MultiHostRun::Call> calls) const {
  std::vector<cuda::DevicePipeline::Part> parts;
  for (const MultiHostRun::Call& call : calls) {
    cuda::DeviceCall* const device = call.entry ? call.entry->device.get() : nullptr;
    for (size_t t = 0; t < call.request->tensors.size(); ++t)
      parts.push_back({device, t, call.request->tensors[t].bytes()});
  }
  return std::make_unique<cuda::DevicePipeline>(std::move(parts), job_.gpu_polls);
}

Result<bool> DeviceCalls::PublishCopied(ProcessSet& set) {
  bool moved = false;
  std::lock_guard lock(set.queue.mutex);
  std::deque<std::shared_ptr<CollectiveEntry>>& pending = set.queue.pending_copies;
  while (!pending.empty()) {
    const std::shared_ptr<CollectiveEntry> next = pending.front();
    if (next->device) {
      HA_ASSIGN(const bool published, MayBePublished(set, *next));
      if (!published) break;
      publisher_.CheckNumerics(*next);
    }
    pending.pop_front();
    job_.gpu_polls.fetch_sub(1, std::memory_order_relaxed);
    moved = true;
    HA_TRY(publisher_.PublishInTurn(set, next));
  }
  if (moved) HA_TRY(Publisher::AnnounceJoin(set));
  return moved;
}

Status DeviceCalls::CopyBack(CollectiveEntry& entry) {
  std::vector<size_t> bytes;
  for (size_t t = 0; t < entry.tensors.size(); ++t) bytes.push_back(entry.ResultBytes(t));
  return entry.device->CopyToDevice(bytes);
}

}  // namespace horoacc
