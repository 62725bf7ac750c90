#include "runtime/sets/multi_host_run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>

#include "execute/kernels/zero_memory.h"
#include "execute/shared_memory/adasum_slices.h"
#include "runtime/engine/assemble_exchange.h"

namespace horoacc {

using schedule::Goal;

namespace {

uint64_t RowElements(const TensorMeta& tensor) {
  uint64_t elements = 1;
  for (size_t dim = 1; dim < tensor.shape.size(); ++dim)
    elements *= static_cast<uint64_t>(tensor.shape[dim]);
  return elements;
}

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && first < second + b_bytes && second < first + a_bytes;
}

}  // namespace

Result<std::unique_ptr<MultiHostRun>> MultiHostRun::Make(Surroundings surroundings,
                                                         MultiHostSet& set,
                                                         const std::vector<Call>& calls) {
  std::unique_ptr<MultiHostRun> run(new MultiHostRun(std::move(surroundings), set));
  HA_TRY(run->AddCalls(calls));
  return run;
}

bool MultiHostRun::Advance() {
  if (complete_ || failed_) return false;
  bool moved = false;
  bool ended = true;
  for (const auto& run : runs_) {
    if (run->complete()) continue;
    moved |= run->Advance();
    if (run->failed()) {
      failed_ = run.get();
      return true;
    }
    ended &= run->complete();
  }
  if (!ended) return moved;
  for (const auto& action : afterwards_) action();
  complete_ = true;
  return true;
}

Status MultiHostRun::AddCalls(const std::vector<Call>& calls) {
  const Call& first = calls.front();
  const Request& request = *first.request;
  if (request.collective == Collective::kAllreduce) {
    if (request.op != ReduceOp::kAdasum || set_.size() == 1) return AddAllreduce(calls);
    for (const Call& call : calls) HA_TRY(AddAdasum(call));
    return {};
  }
  if (request.collective == Collective::kBroadcast) return AddRooted(Goal::kBroadcast, first);
  if (request.collective == Collective::kReduce) return AddRooted(Goal::kReduce, first);
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    switch (request.collective) {
      case Collective::kAllgather:
        HA_TRY(AddAllgather(first, t));
        break;
      case Collective::kReducescatter:
        HA_TRY(AddReducescatter(first, t));
        break;
      case Collective::kAlltoall:
        HA_TRY(AddAllToAll(first, t, {first.facts->splits.begin(), first.facts->splits.end()}));
        break;
      case Collective::kGather:
      case Collective::kScatter:
        HA_TRY(AddGatherOrScatter(first, t));
        break;
      default:
        break;
    }
  }
  return {};
}

Result<std::byte*> MultiHostRun::Allocate(uint64_t bytes) {
  EntryTensor tensor;
  HA_TRY(AllocateOutput(tensor, bytes));
  scratch_.push_back(std::move(tensor.owned));
  return tensor.output;
}

uint32_t MultiHostRun::IndexOfRoot(const Call& call) const {
  return static_cast<uint32_t>(std::ranges::find(set_.ranks(), call.request->root) -
                               set_.ranks().begin());
}

Result<PayloadTensor> MultiHostRun::TensorOf(const Call& call, size_t t) {
  const Request& request = *call.request;
  const TensorMeta& meta = request.tensors[t];
  PayloadTensor tensor;
  tensor.type = meta.type;
  // A single vector is never combined, so any operation will do.
  tensor.op = request.op == ReduceOp::kAdasum ? ReduceOp::kSum : request.op;
  const double divisor = request.op == ReduceOp::kAverage ? static_cast<double>(set_.size()) : 1.0;
  if (Reduces(request.collective)) tensor.scale = {request.prescale, request.postscale, divisor};
  tensor.count = meta.count();
  if (call.entry) {
    tensor.input = call.entry->tensors[t].input;
    tensor.output = call.entry->tensors[t].output;
    return tensor;
  }
  zeros_.push_back(ZeroMemory(meta.bytes()));
  if (!zeros_.back()) {
    return MakeError(ErrorKind::kSystem, "no address space for " + std::to_string(meta.bytes()) +
                                             " bytes of zeros in the place of ranks that joined");
  }
  tensor.input = zeros_.back().get();
  HA_ASSIGN(tensor.output, Allocate(meta.bytes()));
  return tensor;
}

Status MultiHostRun::Add(Goal goal, uint64_t bytes, uint32_t root, Payload payload,
                         const Way& way) {
  const std::string_view tuned = AlgorithmOf(way);
  const std::string_view name =
      tuned.empty() ? SelectAlgorithm({goal, bytes}, *surroundings_.settings, set_.choice())
                    : tuned;
  if (runs_.empty()) algorithm_ = name;
  HA_ASSIGN(const MultiHostSet::Scheduled scheduled, set_.Schedule(name, root));
  payload.wide = canonical() && scheduled.schedule->facts().in_rank_order;
  if (!payload.wide) {
    for (PayloadTensor& tensor : payload.tensors)
      tensor.scale = DividedFirst(tensor.type, tensor.scale);
  }
  const uint64_t window_bytes =
      way.window_bytes > 0 ? way.window_bytes : surroundings_.settings->window_bytes;
  const RunOptions options = set_.NextRun(surroundings_.set, scheduled.cut, window_bytes);
  HA_ASSIGN(auto run, ScheduleRun::Make(*surroundings_.links, scheduled.schedule, scheduled.group,
                                        options, std::move(payload), surroundings_.memory));
  if (surroundings_.flow) run->Follow(*surroundings_.flow);
  runs_.push_back(std::move(run));
  return {};
}

Status MultiHostRun::AddAllreduce(const std::vector<Call>& calls) {
  Payload payload;
  uint64_t bytes = 0;
  for (const Call& call : calls) {
    for (size_t t = 0; t < call.request->tensors.size(); ++t) {
      HA_ASSIGN(const PayloadTensor tensor, TensorOf(call, t));
      payload.tensors.push_back(tensor);
      bytes += call.request->tensors[t].bytes();
    }
  }
  return Add(Goal::kAllreduce, bytes, 0, std::move(payload), calls.front().request->way);
}

// Adasum's dot products need whole vectors, so every rank gets the vectors of all.
Status MultiHostRun::AddAdasum(const Call& call) {
  for (size_t t = 0; t < call.request->tensors.size(); ++t) {
    HA_ASSIGN(const PayloadTensor own, TensorOf(call, t));
    const uint64_t bytes = call.request->tensors[t].bytes();
    if (bytes == 0) continue;
    HA_ASSIGN(std::byte* const all, Allocate(bytes * set_.size()));
    Payload payload;
    payload.tensors = {{.type = own.type, .input = own.input, .output = all}};
    payload.sizes.assign(set_.size(), own.count);
    HA_TRY(Add(Goal::kAllGather, bytes * set_.size(), 0, std::move(payload)));
    afterwards_.emplace_back([own, all, bytes, ranks = set_.size()] {
      std::vector<const void*> sources;
      for (uint32_t r = 0; r < ranks; ++r) sources.push_back(all + r * bytes);
      void* output = own.output;
      SetContext alone;
      alone.ranks = ranks;
      alone.present = {0};  // the only rank that gets the result
      ReduceList list;
      list.pieces.push_back({.type = own.type,
                             .op = ReduceOp::kAdasum,
                             .scale = own.scale,
                             .count = own.count,
                             .sources = sources.data(),
                             .destinations = &output});
      AdasumSlices::CombineAll(alone, list);
    });
  }
  return {};
}

Status MultiHostRun::AddAllgather(const Call& call, size_t t) {
  HA_ASSIGN(const PayloadTensor tensor, TensorOf(call, t));
  const TensorMeta& meta = call.request->tensors[t];
  const uint64_t row = RowElements(meta);
  Payload payload;
  payload.tensors = {tensor};
  for (uint32_t r = 0; r < set_.size(); ++r)
    payload.sizes.push_back(static_cast<uint64_t>(call.facts->rows[t * set_.size() + r]) * row);
  const uint64_t longest = *std::ranges::max_element(payload.sizes) * SizeOf(meta.type);
  return Add(Goal::kAllGather, longest * set_.size(), 0, std::move(payload));
}

Status MultiHostRun::AddReducescatter(const Call& call, size_t t) {
  HA_ASSIGN(const PayloadTensor tensor, TensorOf(call, t));
  const TensorMeta& meta = call.request->tensors[t];
  const uint64_t row = RowElements(meta);
  Payload payload;
  payload.tensors = {tensor};
  for (uint32_t r = 0; r < set_.size(); ++r) {
    const RowRange shard = ScatteredRows(meta.shape[0], r, set_.size());
    payload.sizes.push_back(static_cast<uint64_t>(shard.last - shard.first) * row);
  }
  return Add(Goal::kReduceScatter, meta.bytes(), 0, std::move(payload));
}

// Adds a broadcast or a reduce.
Status MultiHostRun::AddRooted(Goal goal, const Call& call) {
  Payload payload;
  uint64_t bytes = 0;
  for (size_t t = 0; t < call.request->tensors.size(); ++t) {
    HA_ASSIGN(const PayloadTensor tensor, TensorOf(call, t));
    payload.tensors.push_back(tensor);
    bytes += call.request->tensors[t].bytes();
  }
  return Add(goal, bytes, IndexOfRoot(call), std::move(payload));
}

// `rows`: numbers of rows by sender, then by receiver.
Status MultiHostRun::AddAllToAll(const Call& call, size_t t, std::vector<uint64_t> rows) {
  HA_ASSIGN(PayloadTensor tensor, TensorOf(call, t));
  const TensorMeta& meta = call.request->tensors[t];
  const uint64_t row = RowElements(meta);
  const uint64_t element = SizeOf(meta.type);
  const uint32_t ranks = set_.size();
  uint64_t given = 0;
  uint64_t taken = 0;
  for (uint64_t& count : rows) count *= row;
  for (uint32_t r = 0; r < ranks; ++r) {
    given += rows[set_.me() * ranks + r] * element;
    taken += rows[r * ranks + set_.me()] * element;
  }
  // Memory that is sent must not overlap memory that is received into.
  if (Overlap(tensor.input, given, tensor.output, taken)) {
    HA_ASSIGN(std::byte* const copy, Allocate(given));
    std::memcpy(copy, tensor.input, given);
    tensor.input = copy;
  }
  const uint64_t longest = *std::ranges::max_element(rows) * element;
  Payload payload;
  payload.tensors = {tensor};
  payload.sizes = std::move(rows);
  return Add(Goal::kAllToAll, longest * ranks, 0, std::move(payload));
}

// An all-to-all in which only the root receives, or sends; all parts have one size.
Status MultiHostRun::AddGatherOrScatter(const Call& call, size_t t) {
  const Dims& shape = call.request->tensors[t].shape;
  const uint64_t length = shape.empty() ? 1 : static_cast<uint64_t>(shape[0]);
  const uint32_t root = IndexOfRoot(call);
  const uint32_t ranks = set_.size();
  std::vector<uint64_t> rows(static_cast<size_t>(ranks) * ranks);
  for (uint32_t r = 0; r < ranks; ++r) {
    const bool gather = call.request->collective == Collective::kGather;
    rows[gather ? r * ranks + root : root * ranks + r] = length;
  }
  return AddAllToAll(call, t, std::move(rows));
}

}  // namespace horoacc
