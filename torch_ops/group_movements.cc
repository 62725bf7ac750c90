// The calls of torch.distributed that move tensors as they are, and the barriers.
#include <ATen/ops/empty.h>

#include <cmath>
#include <numeric>
#include <string>
#include <string_view>

#include "group_backend.h"
#include "group_call.h"

namespace horoacc {
namespace {

// Flat memory for the parts of all ranks; when the call is complete, part r is copied to
// `outputs[r]`.
at::Tensor LandInParts(GroupCall& call, const TensorVector& outputs) {
  int64_t elements = 0;
  for (const at::Tensor& output : outputs) elements += output.numel();
  at::Tensor flat = at::empty({elements}, outputs[0].options());
  call.Land([flat, outputs](ha_engine*, ha_handle) {
    int64_t first = 0;
    for (const at::Tensor& output : outputs) {
      output.copy_(flat.narrow(0, first, output.numel()).view(output.sizes()));
      first += output.numel();
    }
  });
  return flat;
}

// Uneven parts: only the sender knows a part's size, so sizes are compared after the call.
void AddUnevenAllgather(GroupCall& call, const TensorVector& outputs, const at::Tensor& input) {
  call.Add(call.Readable(input), {}, input.scalar_type(), {input.numel()});
  const int64_t unit = MovedAs(input.scalar_type()).units;
  call.Land([outputs, unit](ha_engine* engine, ha_handle handle) {
    ha_output gathered{};
    TORCH_CHECK(ha_result(engine, handle, 0, &gathered, nullptr) == HA_OK, "no result");
    size_t first = 0;
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      const at::Tensor& output = outputs[rank];
      const int64_t sent = gathered.received_splits[rank] / unit;
      TORCH_CHECK(sent == output.numel(), "all_gather: rank ", rank, " of the group sends ", sent,
                  " elements, and the tensor for it has ", output.numel());
      output.copy_(PartOf(engine, handle, 0, first, output.sizes(), output.options()));
      first += output.nbytes();
    }
  });
}

void AddAllgather(GroupCall& call, const at::Tensor& output, const at::Tensor& input, int ranks) {
  if (!call.Check(output, true) || !call.Check(input, true)) return;
  if (!call.Require(input.scalar_type() == output.scalar_type(), "input and output differ in type"))
    return;
  if (!call.Require(output.numel() == ranks * input.numel(),
                    "the output must have as many elements as the inputs of all ranks"))
    return;
  call.Add(call.Readable(input), call.Writable(output, false), input.scalar_type(),
           {1, input.numel()});
}

}  // namespace

WorkPointer GroupBackend::broadcast(TensorVector& tensors, const c10d::BroadcastOptions& options) {
  GroupCall call(group_, HA_BROADCAST, c10d::OpType::BROADCAST, "broadcast", options, tensors);
  call.SetRoot(options.rootRank);
  if (call.Require(tensors.size() == 1, "one tensor is sent at a time") &&
      call.Check(tensors[0], true)) {
    const at::Tensor memory = call.Writable(tensors[0], true);
    call.Add(memory, memory, memory.scalar_type(), {memory.numel()});
  }
  return call.Submit(tensors);
}

WorkPointer GroupBackend::allgather(TensorLists& outputs, TensorVector& inputs,
                                    const c10d::AllgatherOptions& options) {
  GroupCall call(group_, HA_ALLGATHER, c10d::OpType::ALLGATHER, "all_gather", options, inputs);
  if (!call.Require(outputs.size() == 1 && inputs.size() == 1, "one input and one list") ||
      !call.Check(inputs[0], true) ||
      !call.Require(static_cast<int>(outputs[0].size()) == getSize(),
                    "the list must have a tensor for every rank"))
    return call.Submit({});
  bool even = true;
  for (const at::Tensor& output : outputs[0]) {
    if (!call.Check(output, true) || !call.Require(output.scalar_type() == inputs[0].scalar_type(),
                                                   "the tensors differ in type"))
      return call.Submit({});
    even = even && output.numel() == outputs[0][0].numel();
  }
  if (!even) {
    AddUnevenAllgather(call, outputs[0], inputs[0]);
  } else if (call.Require(outputs[0][0].numel() == inputs[0].numel(),
                          "the tensors of the list must be as large as the input")) {
    AddAllgather(call, LandInParts(call, outputs[0]), inputs[0], getSize());
  }
  return call.Submit(outputs[0]);
}

WorkPointer GroupBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  GroupCall call(group_, HA_ALLGATHER, c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor",
                 options, input);
  AddAllgather(call, output, input, getSize());
  return call.Submit({output});
}

// outputs[rank][tensor]
WorkPointer GroupBackend::allgather_coalesced(TensorLists& outputs, TensorVector& inputs,
                                              const c10d::AllgatherOptions& options) {
  GroupCall call(group_, HA_ALLGATHER, c10d::OpType::ALLGATHER_COALESCED, "all_gather_coalesced",
                 options, inputs);
  TensorVector results;
  call.Require(static_cast<int>(outputs.size()) == getSize(),
               "there must be a list for every rank");
  call.Require(!inputs.empty(), "there are no tensors");
  for (size_t t = 0; t < inputs.size() && call.good(); ++t) {
    TensorVector parts;
    for (const TensorVector& of_rank : outputs) {
      if (call.Require(of_rank.size() == inputs.size(), "the lists differ in length"))
        parts.push_back(of_rank[t]);
    }
    if (call.good() && call.Check(inputs[t], true) &&
        call.CheckList(parts, inputs[t], outputs.size()))
      AddAllgather(call, LandInParts(call, parts), inputs[t], getSize());
  }
  for (const TensorVector& of_rank : outputs)
    results.insert(results.end(), of_rank.begin(), of_rank.end());
  return call.Submit(std::move(results));
}

WorkPointer GroupBackend::allgather_into_tensor_coalesced(TensorVector& outputs,
                                                          TensorVector& inputs,
                                                          const c10d::AllgatherOptions& options) {
  GroupCall call(group_, HA_ALLGATHER, c10d::OpType::ALLGATHER_COALESCED,
                 "all_gather_into_tensor_coalesced", options, inputs);
  if (call.Require(!outputs.empty() && outputs.size() == inputs.size(),
                   "there must be an input for every output")) {
    for (size_t t = 0; t < outputs.size(); ++t)
      AddAllgather(call, outputs[t], inputs[t], getSize());
  }
  return call.Submit(outputs);
}

WorkPointer GroupBackend::gather(TensorLists& outputs, TensorVector& inputs,
                                 const c10d::GatherOptions& options) {
  GroupCall call(group_, HA_GATHER, c10d::OpType::GATHER, "gather", options, inputs);
  call.SetRoot(options.rootRank);
  const bool is_root = options.rootRank == getRank();
  TensorVector results;
  if (call.Require(inputs.size() == 1, "one tensor is gathered at a time") &&
      call.Check(inputs[0], true)) {
    at::Tensor memory;
    if (is_root && call.Require(outputs.size() == 1, "the root needs one list") &&
        call.CheckList(outputs[0], inputs[0], static_cast<size_t>(getSize()))) {
      results = outputs[0];
      memory = LandInParts(call, results);
    }
    call.Add(call.Readable(inputs[0]), memory, inputs[0].scalar_type(), {inputs[0].numel()});
  }
  return call.Submit(std::move(results));
}

WorkPointer GroupBackend::scatter(TensorVector& outputs, TensorLists& inputs,
                                  const c10d::ScatterOptions& options) {
  GroupCall call(group_, HA_SCATTER, c10d::OpType::SCATTER, "scatter", options,
                 inputs.empty() ? at::TensorList() : inputs[0]);
  call.SetRoot(options.rootRank);
  const bool is_root = options.rootRank == getRank();
  if (call.Require(outputs.size() == 1, "one tensor is received at a time") &&
      call.Check(outputs[0], true)) {
    at::Tensor memory;
    if (is_root && call.Require(inputs.size() == 1, "the root needs one list") &&
        call.CheckList(inputs[0], outputs[0], static_cast<size_t>(getSize())))
      memory = Flattened(inputs[0]);
    call.Add(memory, call.Writable(outputs[0], false), outputs[0].scalar_type(),
             {outputs[0].numel()});
  }
  return call.Submit(outputs);
}

// The core's rows are those of the first dimension.
WorkPointer GroupBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& options) {
  GroupCall call(group_, HA_ALLTOALL, c10d::OpType::ALLTOALL_BASE, "all_to_all_single", options,
                 input);
  const auto parts = [&](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    std::vector<int64_t> found = splits;
    const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
    if (splits.empty()) {
      call.Require(rows % getSize() == 0, "the first dimension is not divisible by the ranks");
      found.assign(static_cast<size_t>(getSize()), rows / getSize());
    }
    call.Require(static_cast<int>(found.size()) == getSize(),
                 "there must be a split for every rank");
    call.Require(std::accumulate(found.begin(), found.end(), int64_t{0}) == rows,
                 "the splits do not add up to the first dimension");
    return found;
  };
  if (call.Check(output, true) && call.Check(input, true) &&
      call.Require(input.scalar_type() == output.scalar_type(),
                   "input and output differ in type")) {
    std::vector<int64_t> give = parts(input, input_splits);
    std::vector<int64_t> take = parts(output, output_splits);
    const auto row = [](const at::Tensor& tensor) {
      int64_t elements = 1;
      for (int64_t dim = 1; dim < tensor.dim(); ++dim) elements *= tensor.size(dim);
      return elements;
    };
    call.Require(row(input) == row(output), "input and output differ beyond the first dimension");
    call.SetSplits(std::move(give), std::move(take));
    call.Add(call.Readable(input), call.Writable(output, false), input.scalar_type(),
             {input.dim() > 0 ? input.size(0) : 1, row(input)});
  }
  return call.Submit({output});
}

WorkPointer GroupBackend::alltoall(TensorVector& outputs, TensorVector& inputs,
                                   const c10d::AllToAllOptions& options) {
  GroupCall call(group_, HA_ALLTOALL, c10d::OpType::ALLTOALL, "all_to_all", options, inputs);
  const auto ranks = static_cast<size_t>(getSize());
  if (!call.Require(outputs.size() == ranks && inputs.size() == ranks,
                    "the lists must have a tensor for every rank"))
    return call.Submit({});
  std::vector<int64_t> give;
  std::vector<int64_t> take;
  for (size_t r = 0; r < ranks; ++r) {
    if (!call.Check(inputs[r], true) || !call.Check(outputs[r], true) ||
        !call.Require(inputs[r].scalar_type() == inputs[0].scalar_type() &&
                          outputs[r].scalar_type() == inputs[0].scalar_type(),
                      "the tensors differ in type"))
      return call.Submit({});
    give.push_back(inputs[r].numel());
    take.push_back(outputs[r].numel());
  }
  const at::Tensor flat = Flattened(inputs);
  call.SetSplits(std::move(give), std::move(take));
  call.Add(flat, LandInParts(call, outputs), flat.scalar_type(), {flat.numel(), 1});
  return call.Submit(outputs);
}

WorkPointer GroupBackend::barrier(const c10d::BarrierOptions& options) {
  GroupCall call(group_, HA_BARRIER, c10d::OpType::BARRIER, "barrier", options, {});
  return call.Submit({});
}

// The core's timeout error names every missing rank, so `wait_all_ranks` only says how many of them
// are told in Gloo's words, which programs look for. A rank in any other call, even an ordinary
// barrier, is a mismatch, which fails at once.
void GroupBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  // No time at all is a time here, and means the group's own elsewhere.
  const auto timeout =
      options.timeout.count() == 0 ? std::chrono::milliseconds(1) : options.timeout;
  GroupCall call(group_, HA_MONITORED_BARRIER,
                 {c10d::OpType::BARRIER, "monitored_barrier", false, timeout}, {});
  try {
    call.Submit({})->wait();
  } catch (const c10::DistBackendError& error) {
    const std::string text = error.what_without_backtrace();
    static constexpr std::string_view kMissing = "waiting for rank(s) ";
    const size_t at = text.rfind(kMissing);
    if (at == std::string::npos || text.find("Timed out waiting") == std::string::npos) throw;
    const std::string missing = text.substr(at + kMissing.size());
    const bool several = wait_all_ranks && missing.find(',') != std::string::npos;
    const std::string whom = (several ? "Ranks " : "Rank ") +
                             (several ? missing : missing.substr(0, missing.find(','))) +
                             " failed to pass monitoredBarrier in ";
    const double own = options.timeout.count() < 0 ? 1e3 * group_->limit_seconds()
                                                   : static_cast<double>(options.timeout.count());
    const std::string limit = std::to_string(std::llround(own)) + " ms";
    // Gloo's ranks wait for rank 0, which alone knows who is missing.
    const std::string others = getRank() == 0 ? ""
                                              : "Rank " + std::to_string(getRank()) +
                                                    " successfully reached monitoredBarrier, but "
                                                    "received errors while waiting for send/recv "
                                                    "from rank 0. ";
    const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    throw c10::DistBackendError(here, "Rank " + std::to_string(getRank()) +
                                          " timed out in monitoredBarrier after " + limit + ". " +
                                          whom + limit + ". " + others + text);
  }
}

}  // namespace horoacc
