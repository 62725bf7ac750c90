#include "runtime/engine/gpu_reductions.h"

#include <algorithm>

#include "execute/cuda/host/device_run.h"
#include "execute/cuda/host/exchange_run.h"
#include "execute/cuda/host/leader_run.h"
#include "execute/cuda/host/shard_run.h"
#include "execute/cuda/host/stream_run.h"
#include "execute/cuda/nccl/nccl_run.h"
#include "execute/cuda/persistent/kernel_run.h"
#include "runtime/engine/assemble_exchange.h"
#include "schedule/select.h"

namespace horoacc {
namespace {

constexpr size_t kLeastBuffer = 64 << 10;
constexpr size_t kMostBuffer = 256 << 20;

// Of each rank, for each process set that reduces on GPUs. Larger buckets go through it in windows.
size_t BufferBytes(const Settings& settings) {
  return WholePages(std::clamp<size_t>(settings.fusion_threshold, kLeastBuffer, kMostBuffer));
}

// Sums of complex numbers are those of their parts.
ExchangePiece::Shard InParts(ExchangePiece::Shard shard) {
  const DType part = cuda::ReducedAs(shard.type, shard.op);
  const uint64_t each = SizeOf(shard.type) / SizeOf(part);
  shard.type = part;
  shard.first *= each;
  shard.last *= each;
  return shard;
}

// The frontend awaits an empty result, too, but none of a rank that is not the root.
bool HasResultOnAll(const CollectiveEntry& entry) {
  const Collective collective = entry.request.collective;
  return collective != Collective::kReduce && collective != Collective::kGather;
}

bool IsAdasum(const ProcessSet& set, const Running& running) {
  return running.entries[0]->request.op == ReduceOp::kAdasum && set.context.ranks > 1;
}

std::vector<cuda::BucketTensor> BucketTensors(const ProcessSet& set, const Running& running) {
  std::vector<cuda::BucketTensor> tensors;
  for (const auto& entry : running.entries) {
    const Request& request = entry->request;
    const double divisor =
        request.op == ReduceOp::kAverage ? static_cast<double>(set.ranks.size()) : 1.0;
    // One vector has nothing to be combined with.
    const bool alone = request.op == ReduceOp::kAdasum && set.context.ranks == 1;
    const ReduceOp op = alone ? ReduceOp::kSum : request.op;
    for (size_t t = 0; t < request.tensors.size(); ++t) {
      const TensorMeta& tensor = request.tensors[t];
      const DType type = cuda::ReducedAs(tensor.type, op);
      tensors.push_back({.input = static_cast<const std::byte*>(entry->device->source(t)),
                         .output = static_cast<std::byte*>(entry->device->target(t)),
                         .count = tensor.bytes() / SizeOf(type),
                         .type = type,
                         .op = op,
                         .scale = {request.prescale, request.postscale, divisor}});
    }
  }
  return tensors;
}

// How many ranks have told that all of it stays on their GPU.
uint32_t RanksOnGpus(const ProcessSet& set, const Running& running) {
  uint32_t count = 0;
  for (uint32_t r = 0; r < set.context.ranks; ++r) {
    count += std::ranges::all_of(running.entries, [&](const auto& entry) {
      return set.control->row(r, entry->id, entry->generation).stays_on_gpu != 0;
    });
  }
  return count;
}

}  // namespace

bool GpuReductions::MayRunOnGpus(const ProcessSet& set, const Running& running) {
  if (running.decision.done()) return false;
  if (set.multi_host) {
    return std::ranges::any_of(running.entries, [](const auto& entry) {
      return entry->device && !entry->device->has_host_memory();
    });
  }
  if (running.entries[0]->request.collective != Collective::kAllreduce)
    return RanksOnGpus(set, running) > 0;
  return std::ranges::any_of(running.entries, [](const auto& entry) {
    return std::ranges::any_of(entry->request.tensors,
                               [](const TensorMeta& tensor) { return tensor.bytes() > 0; });
  });
}

bool FitsGpuMode(const Request& request, GpuMode mode, uint32_t ranks) {
  if (mode != GpuMode::kNccl) return true;
  const double divisor = request.op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
  const Scale scale{request.prescale, request.postscale, divisor};
  return request.collective == Collective::kAllreduce &&
         std::ranges::all_of(request.tensors, [&](const TensorMeta& tensor) {
           return cuda::NcclReduces(cuda::ReducedAs(tensor.type, request.op), request.op, scale);
         });
}

// Of those that the GPU group has opened. The CPU does an Adasum for which a rank lacks memory.
std::optional<GpuMode> GpuReductions::ModeOf(ProcessSet& set, Running& running) {
  if (running.decision.path == Path::kNccl) return GpuMode::kNccl;
  if (!set.multi_host && IsAdasum(set, running)) {
    if (!running.adasum) {
      running.adasum =
          std::make_unique<cuda::AdasumSums>(*set.gpu_group, BucketTensors(set, running),
                                             running.entries[0]->device->blocks(), set.context);
    }
    const std::optional<bool> possible = running.adasum->OnAllRanks();
    if (!possible) return std::nullopt;
    if (!*possible) {
      running.adasum.reset();
      return GpuMode::kCpuReduce;
    }
  }
  uint64_t bytes = 0;
  bool nccl_can = true;
  for (const auto& entry : running.entries) {
    nccl_can = nccl_can && FitsGpuMode(entry->request, GpuMode::kNccl, set.context.ranks);
    for (const TensorMeta& tensor : entry->request.tensors) bytes += tensor.bytes();
  }
  if (!set.multi_host && running.entries[0]->request.collective == Collective::kAllreduce)
    return set.gpu_group->ModeFor(bytes, nccl_can);
  const GpuMode agreed = set.gpu_group->agreed()->value();
  return agreed == GpuMode::kNccl ? GpuMode::kCpuReduce : agreed;
}

cuda::GpuGroup* GpuReductions::FindGpuGroup(ProcessSet& set, const Running& running) {
  if (running.decision.partial || job_.settings.gpu_mode == GpuMode::kCpuReduce) return nullptr;
  if (set.multi_host) {
    const Path path = running.decision.path;
    if (path != Path::kComposedWindows && path != Path::kNccl) return nullptr;
  } else if (running.entries[0]->request.collective == Collective::kAllreduce) {
    // NCCL, if it alone is wanted, need not be there for what it cannot do.
    const bool nccl = job_.settings.gpu_mode == GpuMode::kNccl;
    const bool reducible = std::ranges::all_of(running.entries, [&](const auto& entry) {
      return entry->request.on_gpu &&
             (!nccl || FitsGpuMode(entry->request, GpuMode::kNccl, set.context.ranks)) &&
             std::ranges::all_of(entry->request.tensors, [&](const TensorMeta& tensor) {
               return cuda::CanReduce(tensor.type, entry->request.op);
             });
    });
    if (!reducible) return nullptr;
  } else if (RanksOnGpus(set, running) < set.context.ranks) {
    return nullptr;
  }
  if (set.gpu_group) return set.gpu_group.get();
  cuda::GpuGroupPlace place;
  place.segment = set.control->gpus();
  place.ticket_lanes = &job_.control.header().gpu_tickets;
  place.me = set.context.me;
  place.set = set.id;
  place.set_ranks = static_cast<uint32_t>(set.ranks.size());
  for (uint32_t r = 0; r < set.context.ranks; ++r) {
    const uint32_t local = set.control->local(r);
    place.in_this_process.push_back(!job_.share.pidfds[local]);
    const auto member = std::ranges::lower_bound(set.ranks, job_.share.ranks[local]);
    place.members.push_back(static_cast<uint32_t>(member - set.ranks.begin()));
  }
  place.spans_hosts = running.decision.path == Path::kNccl;
  place.holds_news = [this, spans = place.spans_hosts] { return spans && job_.HasUnsent(); };
  const bool alone =
      std::ranges::count_if(job_.share.pidfds, [](const auto& fd) { return !fd; }) == 1;
  place.lanes = alone ? uint64_t{1} << job_.local_rank() % cuda::TicketLanes::kLanes
                      : cuda::TicketLanes::kAllLanes;
  place.alive = [&set](uint32_t index) { return set.control->IsAlive(index); };
  place.ring_others = [&set] { set.context.ring_others(true); };
  place.buffer_bytes = BufferBytes(job_.settings);
  place.wanted = job_.settings.gpu_mode;
  // The GPUs of several hosts have the usual mode of each.
  auto table = schedule::MeasuredTable::Parse(job_.settings.selection_table);
  if (table.ok() && !set.multi_host) {
    place.measured = std::make_shared<const schedule::MeasuredTable>(std::move(table).value());
  }
  place.any_order = job_.settings.reduction != "canonical";
  place.algorithm = ForcedAlgorithm(schedule::Goal::kAllreduce, job_.settings);
  place.nccl_library = job_.settings.nccl_library;
  place.polling = &job_.gpu_polls;
  place.overlapped = &job_.counters.gpu_overlapped_buckets;
  const cuda::DeviceCall& call = *running.entries[0]->device;
  set.gpu_group = std::make_unique<cuda::GpuGroup>(std::move(place), call.gpu(), call.blocks());
  return set.gpu_group.get();
}

std::unique_ptr<Execution> GpuReductions::Make(ProcessSet& set, Running& running,
                                               HostExecution on_host, GpuExecution on_gpus) {
  cuda::DeviceRun::Parts parts;
  parts.gpu_group = FindGpuGroup(set, running);
  if (running.decision.path == Path::kNccl && set.context.me == 0 && !parts.gpu_group->agreed()) {
    parts.hosts = std::make_unique<cuda::HostsExchange>(
        *parts.gpu_group, cuda::HostsExchange::Place{&job_.multi_host->links(),
                                                     {set.id, kGpuExchange},
                                                     job_.rank(),
                                                     set.multi_host->LowestOfHosts()});
  }
  parts.pipelined = devices_.RunsPipelined(set, running);
  parts.polling = &job_.gpu_polls;
  parts.bytes_to_host = &job_.counters.gpu_bytes;
  for (const auto& entry : running.entries) {
    if (entry->device) parts.calls.push_back(entry->device.get());
  }
  parts.devices.resize(set.context.ranks);
  for (uint32_t r = 0; r < set.context.ranks; ++r) {
    const auto device = [&](const auto& entry) {
      return set.control->row(r, entry->id, entry->generation).on_gpu - 1;
    };
    parts.devices[r] = device(running.entries[0]);
    for (const auto& entry : running.entries) {
      if (device(entry) != parts.devices[r]) parts.devices[r] = -1;
    }
  }
  parts.mode = [&set, &running] { return ModeOf(set, running); };
  parts.on_gpus = [&set, on_gpus = std::move(on_gpus)](GpuMode mode, Status& status) {
    set.gpu_mode.store(set.gpu_group->agreed()->value(), std::memory_order_relaxed);
    return on_gpus(mode, status);
  };
  parts.on_host = [&set, &running, on_host = std::move(on_host)](Status& status) {
    const auto& agreed = set.gpu_group ? set.gpu_group->agreed() : std::nullopt;
    if (agreed && agreed->ok() && agreed->value() == GpuMode::kCpuReduce)
      set.gpu_mode.store(GpuMode::kCpuReduce, std::memory_order_relaxed);
    for (const auto& entry : running.entries) {
      if (!entry->device) continue;  // a bucket may hold tensors of both kinds
      for (size_t t = 0; t < entry->tensors.size(); ++t) {
        entry->tensors[t].input = entry->device->input(t);
        entry->tensors[t].output = entry->device->output(t);
      }
    }
    // Now there is memory of the host for the copies from and to the GPU.
    for (const auto& entry : running.entries) {
      if (status.ok() && entry->request.collective != Collective::kAllreduce)
        status = PrepareOutputs(set, *entry);
    }
    return status.ok() ? on_host(status) : nullptr;
  };
  return std::make_unique<cuda::DeviceRun>(std::move(parts));
}

// The place of modes: each is an Execution of a bucket on the GPUs of a GPU group.
std::unique_ptr<Execution> GpuReductions::MakeModeRun(ProcessSet& set, Running& running,
                                                      GpuMode mode, Status& status) {
  if (running.entries[0]->request.collective != Collective::kAllreduce)
    return MakeExchangeRun(set, running, mode, status);
  std::vector<cuda::DeviceCall*> calls;
  for (const auto& entry : running.entries) calls.push_back(entry->device.get());
  std::vector<cuda::BucketTensor> tensors = BucketTensors(set, running);
  uint64_t bytes = 0;
  bool complex = false;
  for (const cuda::BucketTensor& tensor : tensors) {
    complex = complex || IsComplex(tensor.type);
    bytes += tensor.count * SizeOf(tensor.type);
  }
  job_.counters.buckets.fetch_add(1, std::memory_order_relaxed);
  (mode == GpuMode::kLeader   ? job_.counters.gpu_leader_bytes
   : mode == GpuMode::kStream ? job_.counters.gpu_stream_bytes
   : mode == GpuMode::kKernel ? job_.counters.gpu_kernel_bytes
                              : job_.counters.gpu_nccl_bytes)
      .fetch_add(bytes, std::memory_order_relaxed);
  for (const auto& entry : running.entries) {
    job_.events.Emit(Phase::kExecute, set.id, entry->handle, set.buckets_run, bytes,
                     entry->display_name, cuda::NameOf(mode));
  }
  const bool in_shards = running.adasum || (complex && mode == GpuMode::kKernel);
  cuda::Bucket bucket(*set.gpu_group, std::move(tensors), in_shards ? 1 : cuda::WindowLine::kSlots);
  if (in_shards) {
    return std::make_unique<cuda::ShardRun>(std::move(bucket), std::move(calls),
                                            std::move(running.adasum));
  }
  if (mode == GpuMode::kLeader)
    return std::make_unique<cuda::LeaderRun>(std::move(bucket), std::move(calls));
  if (mode == GpuMode::kNccl)
    return std::make_unique<cuda::NcclRun>(std::move(bucket), std::move(calls));
  if (mode == GpuMode::kKernel)
    return std::make_unique<cuda::KernelRun>(std::move(bucket), std::move(calls));
  return std::make_unique<cuda::StreamRun>(std::move(bucket), std::move(calls));
}

std::unique_ptr<Execution> GpuReductions::MakeExchangeRun(ProcessSet& set, const Running& running,
                                                          GpuMode mode, Status& status) {
  std::vector<cuda::DeviceCall*> calls;
  std::vector<ExchangePiece> pieces;
  uint64_t bytes = 0;
  for (const auto& entry : running.entries) {
    calls.push_back(entry->device.get());
    for (size_t t = 0; t < entry->tensors.size(); ++t) {
      entry->tensors[t].input = static_cast<const std::byte*>(entry->device->source(t));
      entry->tensors[t].output = static_cast<std::byte*>(entry->device->target(t));
      bytes += entry->request.tensors[t].bytes();
      const uint64_t result = entry->ResultBytes(t);
      if (entry->tensors[t].output || (result == 0 && !HasResultOnAll(*entry))) continue;
      Result<std::byte*> made = entry->device->MakeResult(t, result);
      if (!made.ok()) {
        status = made.error();
        return nullptr;
      }
      entry->tensors[t].output = made.value();
    }
    for (ExchangePiece& piece : ExchangePieces(set, *entry)) {
      for (ExchangePiece::Shard& shard : piece.shards) shard = InParts(shard);
      pieces.push_back(std::move(piece));
    }
  }
  job_.counters.gpu_moved_bytes.fetch_add(bytes, std::memory_order_relaxed);
  for (const auto& entry : running.entries) {
    job_.events.Emit(Phase::kExecute, set.id, entry->handle, set.buckets_run, bytes,
                     entry->display_name, cuda::NameOf(mode));
  }
  return std::make_unique<cuda::ExchangeRun>(*set.gpu_group, std::move(calls), std::move(pieces));
}

}  // namespace horoacc
