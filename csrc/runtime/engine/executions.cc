#include "runtime/engine/executions.h"

#include <algorithm>

#include "execute/cuda/host/composed_run.h"
#include "execute/schedule/composed_windows.h"
#include "execute/schedule/drained_run.h"
#include "execute/shared_memory/adasum_slices.h"
#include "execute/shared_memory/direct_slices.h"
#include "execute/shared_memory/exchange.h"
#include "execute/shared_memory/two_phase.h"
#include "negotiate/control_segment/assemble_reduce.h"
#include "negotiate/multi_host/eager.h"
#include "runtime/engine/assemble_exchange.h"
#include "runtime/sets/multi_host_run.h"

namespace horoacc {
namespace {

std::vector<ReducePiece> PrivatePieces(const ProcessSet& set, const SetContext& context,
                                       const Running& running) {
  ReduceList list;
  for (const auto& entry : running.entries) {
    const size_t first = list.pieces.size();
    AppendPieces(*set.control, context, {entry->id, entry->generation}, false, list);
    for (size_t t = 0; t < entry->tensors.size(); ++t) {
      list.pieces[first + t].input = entry->tensors[t].input;
      list.pieces[first + t].output = entry->tensors[t].output;
    }
  }
  return std::move(list.pieces);
}

/// Whether the root has told of every rank what this call needs to know.
bool HasFactsOf(const Request& request, const CallFacts& facts, size_t ranks) {
  const auto counts = [](const std::vector<int64_t>& values, size_t expected) {
    return values.size() == expected &&
           std::ranges::all_of(values, [](int64_t value) { return value >= 0; });
  };
  if (request.collective == Collective::kAllgather)
    return counts(facts.rows, request.tensors.size() * ranks);
  if (request.collective == Collective::kAlltoall) return counts(facts.splits, ranks * ranks);
  return true;
}

uint64_t BytesOf(const Request& request) {
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : request.tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Execution>> Executions::Make(ProcessSet& set, Running& running) {
  if (set.multi_host) return MakeBetweenHosts(set, running);
  if (running.entries.empty()) return std::unique_ptr<Execution>();  // this rank takes no part
  if (running.decision.partial) {
    const CollectiveEntry& only = *running.entries[0];
    HA_ASSIGN(running.context,
              PartialContext(*set.control, set.context, {only.id, only.generation}));
  }
  for (const auto& entry : running.entries) {
    if (entry->request.collective != Collective::kAllreduce) HA_TRY(PrepareOutputs(set, *entry));
  }
  if (GpuReductions::MayRun(set, running)) {
    return gpus_.Make(
        set, running,
        [this, &set, &running](Status& status) { return MakeOnHost(set, running, status); },
        [this, &set, &running](GpuMode mode, Status& status) {
          return gpus_.MakeModeRun(set, running, mode, status);
        });
  }
  Status status;
  std::unique_ptr<Execution> execution = MakeOnHost(set, running, status);
  HA_TRY(std::move(status));
  return execution;
}

std::unique_ptr<Execution> Executions::MakeOnHost(ProcessSet& set, Running& running,
                                                  Status& status) {
  const Decision& decision = running.decision;
  const SetContext& context = running.context ? *running.context : set.context;
  const bool allreduce = running.entries[0]->request.collective == Collective::kAllreduce;
  uint64_t bytes = 0;
  for (const auto& entry : running.entries) bytes += BytesOf(entry->request);
  if (allreduce) job_.counters.buckets.fetch_add(1, std::memory_order_relaxed);
  for (const auto& entry : running.entries) {
    job_.events.Emit(Phase::kExecute, set.id, entry->handle, set.buckets_run, bytes,
                     entry->display_name, entry->device ? "cpu_reduce" : NameOf(decision.path));
    if (!allreduce || !decision.shared || entry->device) continue;
    for (size_t t = 0; t < entry->tensors.size(); ++t) {
      if (entry->tensors[t].staged) continue;
      job_.counters.arena_bytes.fetch_add(entry->request.tensors[t].bytes(),
                                          std::memory_order_relaxed);
    }
  }
  ExecSlot& slot = set.control->slot(decision.slot);
  switch (decision.path) {
    case Path::kNone:
      return nullptr;
    case Path::kLastArriver:
      job_.counters.last_arriver.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    case Path::kDirectSlices:
    case Path::kAdasumSlices: {
      ReduceList list;
      list.pieces.reserve(running.entries.size());
      for (const auto& entry : running.entries) {
        AppendPieces(*set.control, context, {entry->id, entry->generation}, true, list);
      }
      if (decision.path == Path::kAdasumSlices) {
        std::vector<std::byte*> untold;
        for (const auto& entry : running.entries) {
          for (size_t t = 0; t < entry->tensors.size() && !decision.shared; ++t)
            untold.push_back(entry->tensors[t].output);
        }
        return std::make_unique<AdasumSlices>(context, slot, std::move(list), untold);
      }
      if (devices_.RunsPipelined(set, running)) {
        std::vector<MultiHostRun::Call> calls;
        for (const auto& entry : running.entries) calls.push_back({&entry->request, entry.get()});
        return std::make_unique<DirectSlices>(context, slot, std::move(list),
                                              job_.settings.gpu_chunk_bytes,
                                              devices_.PipelineOf(calls));
      }
      return std::make_unique<DirectSlices>(context, slot, std::move(list));
    }
    case Path::kFlatWindows: {
      job_.counters.window_bytes.fetch_add(bytes, std::memory_order_relaxed);
      std::vector<ExchangePiece> pieces;
      for (const ReducePiece& piece : PrivatePieces(set, context, running)) {
        pieces.push_back(FlatAllreduce(piece, context));
      }
      return std::make_unique<Exchange>(context, slot, std::move(pieces));
    }
    case Path::kTwoPhaseWindows:
      job_.counters.window_bytes.fetch_add(bytes, std::memory_order_relaxed);
      return std::make_unique<TwoPhaseWindows>(context, slot, PrivatePieces(set, context, running));
    case Path::kExchange: {
      std::vector<ExchangePiece> pieces;
      for (const auto& entry : running.entries) {
        for (ExchangePiece& piece : ExchangePieces(set, *entry)) pieces.push_back(std::move(piece));
      }
      return std::make_unique<Exchange>(set.context, slot, std::move(pieces));
    }
    case Path::kEager:
    case Path::kSchedule:
    case Path::kComposed:
    case Path::kComposedWindows:
    case Path::kNccl:
      break;  // between hosts
  }
  status = MakeError(ErrorKind::kSystem, "no path for this collective");
  return nullptr;
}

// The inputs lie in each rank's own memory; the facts of a call came with the decision.
Result<std::unique_ptr<Execution>> Executions::MakeBetweenHosts(ProcessSet& set, Running& running) {
  const Decision& decision = running.decision;
  if (decision.kind == Decision::Kind::kDrain) return MakeDrained(set, decision);
  const uint32_t ranks = set.multi_host->size();
  for (size_t k = 0; k < decision.facts.size(); ++k) {
    const CallFacts& facts = decision.facts[k];
    CollectiveEntry* const entry = k < running.entries.size() ? running.entries[k].get() : nullptr;
    if (entry && !HasFactsOf(entry->request, facts, ranks)) {
      return MakeError(ErrorKind::kSystem,
                       "a decision lacks what '" + entry->display_name + "' needs", set.ranks[0]);
    }
    if (entry && entry->request.collective != Collective::kAllreduce) {
      HA_TRY(PrepareOutputs(
          {.ranks = set.ranks,
           .me = set.multi_host->me(),
           .rows = [&](size_t t, uint32_t r) { return facts.rows[t * ranks + r]; },
           .rows_between = [&](uint32_t from,
                               uint32_t to) { return facts.splits[from * ranks + to]; }},
          *entry));
    }
  }
  if (!GpuReductions::MayRun(set, running)) return RunBetweenHosts(set, running, false);
  const auto run = [this, &set, &running](bool on_gpus, Status& status) {
    Result<std::unique_ptr<Execution>> made = RunBetweenHosts(set, running, on_gpus);
    if (!made.ok()) status = made.error();
    return made.ok() ? std::move(made).value() : nullptr;
  };
  return gpus_.Make(
      set, running, [run](Status& status) { return run(false, status); },
      [this, &set, &running, run](GpuMode mode, Status& status) {
        return running.decision.path == Path::kNccl ? gpus_.MakeModeRun(set, running, mode, status)
                                                    : run(true, status);
      });
}

Result<std::unique_ptr<Execution>> Executions::RunBetweenHosts(ProcessSet& set, Running& running,
                                                               bool on_gpus) {
  const Decision& decision = running.decision;
  std::vector<MultiHostRun::Call> calls;
  uint64_t bytes = 0;
  for (size_t k = 0; k < decision.facts.size(); ++k) {
    CollectiveEntry* const entry = k < running.entries.size() ? running.entries[k].get() : nullptr;
    const CallFacts& facts = decision.facts[k];
    calls.push_back({entry ? &entry->request : &facts.request, entry, &facts});
    bytes += BytesOf(*calls.back().request);
  }
  const bool reduces = !calls.empty() && calls[0].request->collective == Collective::kAllreduce;
  const bool composed = decision.path == Path::kComposed || decision.path == Path::kComposedWindows;
  for (const auto& entry : running.entries) {
    for (size_t t = 0; reduces && !composed && t < entry->tensors.size(); ++t) {
      if (entry->tensors[t].staged || entry->device) continue;  // counted where they were copied
      job_.counters.link_bytes.fetch_add(entry->request.tensors[t].bytes(),
                                         std::memory_order_relaxed);
    }
  }
  std::string_view how = "none";
  std::unique_ptr<Execution> execution;
  if (decision.done()) {
    for (size_t k = 0; k < running.entries.size(); ++k) {
      if (decision.facts[k].result.empty()) continue;
      how = NameOf(Path::kEager);
      std::vector<std::byte*> outputs;
      for (EntryTensor& tensor : running.entries[k]->tensors) outputs.push_back(tensor.output);
      UnpackTensors(running.entries[k]->request, decision.facts[k].result, outputs);
    }
  } else if (composed) {
    HA_ASSIGN(execution, MakeComposed(set, running, on_gpus, how));
  } else {
    MultiHostRun::Surroundings around;
    around.links = &job_.multi_host->links();
    around.memory = {job_.arena.get(), [this](void* block) { job_.blocks.Free(block); }};
    around.settings = &job_.settings;
    around.set = set.id;
    if (devices_.RunsPipelined(set, running)) around.flow = devices_.PipelineOf(calls);
    HA_ASSIGN(auto run, MultiHostRun::Make(std::move(around), *set.multi_host, calls));
    how = run->algorithm();
    execution = std::move(run);
  }
  if (reduces) job_.counters.buckets.fetch_add(1, std::memory_order_relaxed);
  if (reduces || !decision.done()) {
    for (const auto& entry : running.entries) {
      job_.events.Emit(Phase::kExecute, set.id, entry->handle, set.buckets_run, bytes,
                       entry->display_name, how);
    }
  }
  return execution;
}

// None if this rank is no rail.
std::optional<BetweenHosts::Surroundings> Executions::Between(
    ProcessSet& set, MultiHostSet::ComposedSchedule& composed, uint64_t window_bytes,
    uint64_t run) {
  if (!composed.between) {
    if (run == 0) (void)set.multi_host->NextRun(set.id, {}, 0);
    return std::nullopt;
  }
  MultiHostSet::Scheduled& scheduled = *composed.between;
  return BetweenHosts::Surroundings{
      &job_.multi_host->links(),
      std::move(scheduled.schedule),
      std::move(scheduled.group),
      set.multi_host->NextRun(set.id, scheduled.cut,
                              window_bytes > 0 ? window_bytes : job_.settings.window_bytes, run),
      {job_.arena.get(), [this](void* block) { job_.blocks.Free(block); }}};
}

// Of the same cuts as the run of which it takes the place.
Result<std::unique_ptr<Execution>> Executions::MakeDrained(ProcessSet& set,
                                                           const Decision& decision) {
  const Request& request = decision.facts[0].request;
  std::vector<ReducePiece> pieces;
  for (const TensorMeta& tensor : request.tensors) {
    pieces.push_back({.type = tensor.type,
                      .op = request.op,
                      .scale = set.multi_host->ScaleOf(request, tensor.type),
                      .count = tensor.count()});
  }
  HA_ASSIGN(MultiHostSet::ComposedSchedule composed,
            set.multi_host->Compose(BytesOf(request), AlgorithmOf(request.way)));
  std::optional<BetweenHosts::Surroundings> between =
      Between(set, composed, request.way.window_bytes, decision.run);
  if (!between) return std::unique_ptr<Execution>();
  HA_ASSIGN(auto made,
            DrainedRun::Make(pieces, composed.rail, set.multi_host->wide(), std::move(*between)));
  return std::unique_ptr<Execution>(std::move(made));
}

Result<std::unique_ptr<Execution>> Executions::MakeComposed(ProcessSet& set, Running& running,
                                                            bool on_gpus, std::string_view& how) {
  const Path path = running.decision.path;
  const bool shared = path == Path::kComposed;
  const bool wide = set.multi_host->wide();
  ReduceList list;
  uint64_t bytes = 0, copied = 0;  // the copied ones are counted where they were copied
  for (const auto& entry : running.entries) {
    const size_t first = list.pieces.size();
    AppendPieces(*set.control, set.context, {entry->id, entry->generation}, shared, list);
    for (size_t t = 0; t < entry->tensors.size(); ++t) {
      ReducePiece& piece = list.pieces[first + t];
      bytes += piece.bytes();
      if (!on_gpus && (entry->tensors[t].staged || entry->device)) copied += piece.bytes();
      piece.input = entry->tensors[t].input;
      piece.output = entry->tensors[t].output;
      piece.scale = set.multi_host->ScaleOf(entry->request, piece.type);
      if (!on_gpus) continue;
      piece.input = entry->device->source(t);
      piece.output = entry->device->target(t);
    }
  }
  (on_gpus  ? job_.counters.gpu_composed_bytes
   : shared ? job_.counters.arena_bytes
            : job_.counters.window_bytes)
      .fetch_add(bytes - copied, std::memory_order_relaxed);
  const uint64_t number = running.decision.run;
  const Way& way = running.entries[0]->request.way;
  HA_ASSIGN(MultiHostSet::ComposedSchedule composed,
            set.multi_host->Compose(bytes, AlgorithmOf(way)));
  how = composed.between ? composed.algorithm : NameOf(path);
  std::optional<BetweenHosts::Surroundings> between =
      Between(set, composed, way.window_bytes, number);
  ExecSlot& slot = set.control->slot(running.decision.slot);
  const bool gated = number != 0;
  if (on_gpus) {
    std::vector<cuda::DeviceCall*> calls;
    for (const auto& entry : running.entries) calls.push_back(entry->device.get());
    HA_ASSIGN(auto made,
              cuda::ComposedRun::Make(*set.gpu_group, std::move(calls), std::move(list.pieces),
                                      composed.rail, std::move(between)));
    return std::unique_ptr<Execution>(std::move(made));
  }
  if (!shared) {
    HA_ASSIGN(auto made, ComposedWindows::Make(set.context, slot, std::move(list.pieces),
                                               composed.rail, wide, std::move(between), gated));
    return std::unique_ptr<Execution>(std::move(made));
  }
  HA_ASSIGN(auto made, ComposedAllreduce::Make(set.context, slot, std::move(list), composed.rail,
                                               wide, std::move(between), gated));
  return std::unique_ptr<Execution>(std::move(made));
}

}  // namespace horoacc
