// The calls of torch.distributed that reduce.
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include "group_backend.h"
#include "group_call.h"
#include "torch_versions.h"

namespace horoacc {
namespace {

// One tensor of an allreduce, in place.
void AddAllreduce(GroupCall& call, const at::Tensor& tensor) {
  if (!call.Check(tensor, false)) return;
  const at::Tensor memory = call.Writable(tensor, true);
  call.Add(memory, memory, tensor.scalar_type(), {tensor.numel()});
}

// Each rank gets its part of `input`, which has one for every rank.
void AddReduceScatter(GroupCall& call, const at::Tensor& output, const at::Tensor& input,
                      int ranks) {
  if (!call.Check(output, false) || !call.Check(input, false)) return;
  if (!call.Require(input.scalar_type() == output.scalar_type(), "input and output differ in type"))
    return;
  if (!call.Require(input.numel() == ranks * output.numel(),
                    "the input must have as many elements as the outputs of all ranks"))
    return;
  call.Add(call.Readable(input), call.Writable(output, false), output.scalar_type(),
           {ranks, output.numel()});
}

// Gathers the indices and values of a sparse tensor; coalescing them gives the sum.
WorkPointer AllreduceSparse(const std::shared_ptr<Group>& group, at::Tensor& tensor,
                            const CallOptions& options, const c10d::ReduceOp& op) {
  GroupCall call(group, HA_ALLGATHER, options, tensor);
  call.Require(op.op_ == c10d::ReduceOp::SUM, "sparse tensors are reduced by SUM only");
  call.Require(tensor.layout() == at::kSparse, "not a sparse COO tensor");
  if (!call.good()) return call.Submit({});
  const at::Tensor sorted = tensor.coalesce();
  const at::Tensor indices = sorted.indices().t().contiguous();
  const at::Tensor values = sorted.values().contiguous();
  if (!call.Check(values, true) || !call.Check(indices, true)) return call.Submit({});
  call.Add(indices, {}, at::kLong, at::DimVector(indices.sizes()));
  call.Add(values, {}, values.scalar_type(), at::DimVector(values.sizes()));
  const auto gathered = [](ha_engine* engine, ha_handle handle, size_t member,
                           const at::Tensor& like) {
    ha_output output{};
    TORCH_CHECK(ha_result(engine, handle, member, &output, nullptr) == HA_OK, "no result");
    std::vector<int64_t> shape = like.sizes().vec();
    shape[0] = output.shape[0];
    return PartOf(engine, handle, member, 0, shape, like.options());
  };
  call.Land([tensor, indices, values, gathered](ha_engine* engine, ha_handle handle) {
    const at::Tensor all_indices = gathered(engine, handle, 0, indices);
    const at::Tensor all_values = gathered(engine, handle, 1, values);
    const at::Tensor sum =
        at::_sparse_coo_tensor_unsafe(all_indices.t(), all_values, tensor.sizes()).coalesce();
    tensor.copy_(sum);
  });
  return call.Submit({tensor});
}

}  // namespace

WorkPointer GroupBackend::allreduce(TensorVector& tensors, const c10d::AllreduceOptions& options) {
  const CallOptions asked{c10d::OpType::ALLREDUCE, "all_reduce", options.asyncOp, options.timeout};
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse)
    return AllreduceSparse(group_, tensors[0], asked, options.reduceOp);
  GroupCall call(group_, HA_ALLREDUCE, asked, tensors);
  call.SetReduction(options.reduceOp);
  if (call.Require(tensors.size() == 1, "one tensor is reduced at a time"))
    AddAllreduce(call, tensors[0]);
  return call.Submit(tensors);
}

WorkPointer GroupBackend::allreduce_sparse(TensorVector& tensors,
                                           const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options);
}

WorkPointer GroupBackend::allreduce_coalesced(TensorVector& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  GroupCall call(group_, HA_ALLREDUCE, c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced",
                 options, tensors);
  call.SetReduction(options.reduceOp);
  call.Require(!tensors.empty(), "there are no tensors");
  for (const at::Tensor& tensor : tensors) AddAllreduce(call, tensor);
  return call.Submit(tensors);
}

WorkPointer GroupBackend::reduce(TensorVector& tensors, const c10d::ReduceOptions& options) {
  GroupCall call(group_, HA_REDUCE, c10d::OpType::REDUCE, "reduce", options, tensors);
  call.SetReduction(options.reduceOp);
  call.SetRoot(options.rootRank);
  if (call.Require(tensors.size() == 1, "one tensor is reduced at a time") &&
      call.Check(tensors[0], false)) {
    const bool is_root = options.rootRank == getRank();
    const at::Tensor memory = is_root ? call.Writable(tensors[0], true) : call.Readable(tensors[0]);
    call.Add(memory, is_root ? memory : at::Tensor(), memory.scalar_type(), {memory.numel()});
  }
  return call.Submit(tensors);
}

WorkPointer GroupBackend::reduce_scatter(TensorVector& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  GroupCall call(group_, HA_REDUCESCATTER, c10d::OpType::REDUCE_SCATTER, "reduce_scatter", options,
                 inputs.empty() ? at::TensorList() : inputs[0]);
  call.SetReduction(options.reduceOp);
  if (call.Require(outputs.size() == 1 && inputs.size() == 1, "one output and one list") &&
      call.CheckList(inputs[0], outputs[0], static_cast<size_t>(getSize())))
    AddReduceScatter(call, outputs[0], Flattened(inputs[0]), getSize());
  return call.Submit(outputs);
}

WorkPointer GroupBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  GroupCall call(group_, HA_REDUCESCATTER, c10d::OpType::_REDUCE_SCATTER_BASE,
                 "reduce_scatter_tensor", options, input);
  call.SetReduction(options.reduceOp);
  AddReduceScatter(call, output, input, getSize());
  return call.Submit({output});
}

WorkPointer GroupBackend::reduce_scatter_tensor_coalesced(
    TensorVector& outputs, TensorVector& inputs, const c10d::ReduceScatterOptions& options) {
  GroupCall call(group_, HA_REDUCESCATTER, kReduceScatterCoalesced,
                 "reduce_scatter_tensor_coalesced", options, inputs);
  call.SetReduction(options.reduceOp);
  if (call.Require(!outputs.empty() && outputs.size() == inputs.size(),
                   "there must be an input for every output")) {
    for (size_t t = 0; t < outputs.size(); ++t)
      AddReduceScatter(call, outputs[t], inputs[t], getSize());
  }
  return call.Submit(outputs);
}

}  // namespace horoacc
