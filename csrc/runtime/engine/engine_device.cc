// Calls whose tensors lie on a GPU: copied to memory that the ranks see, published once they are
// there, and copied back. In between they are calls like any other.
#include <algorithm>

#include "execute/cuda/host/device_pipeline.h"
#include "negotiate/multi_host/eager.h"
#include "runtime/engine/engine.h"

namespace horoacc {
namespace {

/// Does this rank's call read its input?
bool Gives(Collective collective, bool is_root) {
  const bool only_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
  return is_root || !only_root;
}

bool HasPathOnGpus(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kReducescatter ||
         collective == Collective::kAllgather || collective == Collective::kBroadcast ||
         collective == Collective::kAlltoall;
}

}  // namespace

// What is ordered and cannot be is said in the first call, on all ranks alike.
Status Engine::CheckGpuMode(const ProcessSet& set) const {
  const GpuMode wanted = settings_.gpu_mode;
  if (!set.multi_host || wanted == GpuMode::kAuto || wanted == GpuMode::kCpuReduce) return {};
  return cuda::RefuseMode(wanted, "the ranks do not all share a host");
}

// Otherwise it is copied to the host at once. What stays may still be copied later, if the ranks do
// not agree on a mode in which GPUs reduce.
bool Engine::StaysOnGpu(const ProcessSet& set, const Submission& submission) const {
  const Request& request = submission.request;
  if (!HasPathOnGpus(request.collective) || set.multi_host || settings_.check_numerics)
    return false;
  const GpuMode agreed = set.gpu_mode.load(std::memory_order_relaxed);
  const GpuMode mode = agreed == GpuMode::kAuto ? settings_.gpu_mode : agreed;
  if (mode == GpuMode::kCpuReduce ||
      !FitsMode(request, mode, static_cast<uint32_t>(set.ranks.size()))) {
    return false;
  }
  // What the engine allocates lies in the host's memory.
  const bool placed = std::ranges::all_of(
      submission.buffers, [](const auto& buffer) { return buffer.output != nullptr; });
  if (!placed && request.collective != Collective::kAllreduce) return false;
  return !Reduces(request.collective) ||
         std::ranges::all_of(request.tensors, [&](const TensorMeta& tensor) {
           return cuda::CanReduce(tensor.type, request.op);
         });
}

// Before anybody else knows of the entry: puts the host's memory in the place of the GPU's.
Status Engine::BeginDevice(Entry& entry, const Submission& submission) {
  const Request& request = entry.request;
  if (IsBarrier(request.collective) || request.collective == Collective::kJoin) return {};
  const bool is_root = request.root == placement_.rank;
  if (request.collective == Collective::kAllreduce) {
    for (size_t t = 0; t < entry.tensors.size(); ++t) {
      if (entry.tensors[t].output || request.tensors[t].bytes() == 0) continue;
      return MakeError(ErrorKind::kInvalid, "no memory on the GPU was given for its result");
    }
  }
  HA_ASSIGN(cuda::Gpus::Place place, gpus_.Find(submission.device->number));
  const auto set = FindSet(entry.process_set);
  std::vector<cuda::DeviceTensor> tensors;
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    const bool allreduce = request.collective == Collective::kAllreduce;
    const bool broadcast = request.collective == Collective::kBroadcast;
    cuda::DeviceTensor tensor;
    tensor.input = entry.tensors[t].input;
    tensor.output = entry.tensors[t].output;
    tensor.input_bytes = request.tensors[t].bytes();
    if (request.collective == Collective::kScatter) tensor.input_bytes *= set->ranks.size();
    tensor.reads_input = Gives(request.collective, is_root);
    tensor.in_place = allreduce || (broadcast && tensor.output == tensor.input);
    tensor.writes_output = !(broadcast && is_root && tensor.in_place);
    tensors.push_back(tensor);
  }
  HA_ASSIGN(entry.device, cuda::DeviceCall::Begin(std::move(place), submission.device->stream,
                                                  tensors, settings_.gpu_chunk_bytes));
  if (!StaysOnGpu(*set, submission)) {
    HA_ASSIGN(const uint64_t fetched, entry.device->CopyToHost());
    counters_.gpu_bytes.fetch_add(fetched, std::memory_order_relaxed);
  }
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    entry.tensors[t].input = entry.device->input(t);
    entry.tensors[t].output = entry.device->output(t);
  }
  return {};
}

// Under the queue's lock. What comes behind a call of its own name waits with it.
bool Engine::MustArrive(const SetQueue& queue, const Entry& entry) const {
  if (entry.device && entry.device->has_host_memory()) return true;
  return std::ranges::any_of(queue.arriving,
                             [&](const auto& other) { return other->id == entry.id; });
}

// Whether it can be reduced while it arrives. The ranks do not differ in the answer.
bool Engine::IsPipelined(const Request& request) const {
  if (!request.on_gpu || request.collective != Collective::kAllreduce) return false;
  if (request.op == ReduceOp::kAdasum) return false;
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : request.tensors) bytes += tensor.bytes();
  return bytes > std::max(settings_.gpu_chunk_bytes, settings_.last_arriver_bytes);
}

// On one host.
bool Engine::RunsPipelined(const Running& running) const {
  return running.decision.shared && !running.decision.done() &&
         std::ranges::any_of(running.entries,
                             [&](const auto& entry) { return IsPipelined(entry->request); });
}

// What flows may be known to the others from its first chunk on, unless somebody looks at all of it
// before it is reduced.
Result<bool> Engine::MayBePublished(const ProcessSet& set, Entry& entry) const {
  const bool in_sight = std::ranges::all_of(
      entry.tensors, [&](const EntryTensor& tensor) { return arena_->Contains(tensor.input); });
  if (!in_sight || settings_.check_numerics || !IsPipelined(entry.request) ||
      (set.multi_host && EagerBytes(entry.request, set.ranks.size()) > 0)) {
    return entry.device->AreInputsOnHost();
  }
  return entry.device->IsFirstChunkOnHost();
}

std::unique_ptr<ChunkPipeline> Engine::PipelineOf(std::span<const MultiHostRun::Call> calls) {
  std::vector<cuda::DevicePipeline::Part> parts;
  for (const MultiHostRun::Call& call : calls) {
    cuda::DeviceCall* const device = call.entry ? call.entry->device.get() : nullptr;
    for (size_t t = 0; t < call.request->tensors.size(); ++t)
      parts.push_back({device, t, call.request->tensors[t].bytes()});
  }
  return std::make_unique<cuda::DevicePipeline>(std::move(parts), arriving_);
}

Result<bool> Engine::PublishArrived(ProcessSet& set) {
  if (arriving_.load(std::memory_order_relaxed) == 0) return false;
  bool moved = false;
  std::lock_guard lock(set.queue.mutex);
  std::deque<std::shared_ptr<Entry>>& arriving = set.queue.arriving;
  while (!arriving.empty()) {
    const std::shared_ptr<Entry> next = arriving.front();
    if (next->device) {
      HA_ASSIGN(const bool published, MayBePublished(set, *next));
      if (!published) break;
      if (settings_.check_numerics && next->request.local_error.empty()) {
        std::vector<const void*> inputs;
        for (const EntryTensor& tensor : next->tensors) inputs.push_back(tensor.input);
        next->request.local_error = FindNotFinite(next->request, inputs);
      }
    }
    arriving.pop_front();
    arriving_.fetch_sub(1, std::memory_order_relaxed);
    moved = true;
    HA_TRY(PublishInTurn(set, next));
  }
  if (moved) HA_TRY(AnnounceJoin(set));
  return moved;
}

Status Engine::LandDevice(Entry& entry) {
  std::vector<size_t> bytes;
  for (size_t t = 0; t < entry.tensors.size(); ++t) {
    uint64_t size = SizeOf(entry.request.tensors[t].type);
    for (const int64_t dim : entry.tensors[t].result_shape) size *= static_cast<uint64_t>(dim);
    bytes.push_back(size);
  }
  return entry.device->CopyToDevice(bytes);
}

Status Engine::JoinStream(uint64_t handle, void* stream) {
  const std::shared_ptr<Entry> entry = handles_.Find(handle);
  if (!entry) return MakeError(ErrorKind::kInvalid, "unknown handle " + std::to_string(handle));
  if (!entry->complete.load(std::memory_order_acquire) || !entry->device) return {};
  return entry->device->Join(stream);
}

}  // namespace horoacc
