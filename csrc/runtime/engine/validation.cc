#include "runtime/engine/validation.h"

#include <algorithm>
#include <numeric>

#include "execute/kernels/finite.h"
#include "execute/kernels/reduce.h"

namespace horoacc {

std::string ReasonInvalid(const ProcessSet& set, const Submission& submission, int rank) {
  const Request& request = submission.request;
  const auto ranks = static_cast<int64_t>(set.ranks.size());
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorMeta& tensor = request.tensors[t];
    const bool gives = !IsBarrier(request.collective) &&
                       (request.collective != Collective::kScatter || request.root == rank);
    if (submission.buffers[t].input == nullptr && tensor.bytes() > 0 && gives) {
      return "no memory was given for its " + std::to_string(tensor.bytes()) + " bytes";
    }
    if (tensor.shape.given() > static_cast<uint32_t>(kMaxDims)) {
      return std::to_string(tensor.shape.given()) + " dimensions; at most " +
             std::to_string(kMaxDims);
    }
    if (Reduces(request.collective)) {
      if (const Status status = CheckReducible(tensor.type, request.op); !status.ok()) {
        return status.error().message;
      }
      if (request.op == ReduceOp::kAdasum && request.collective != Collective::kAllreduce)
        return std::string(NameOf(request.collective)) + " does not take adasum";
    }
    const bool needs_rows = request.collective == Collective::kAllgather ||
                            request.collective == Collective::kAlltoall ||
                            request.collective == Collective::kReducescatter;
    if (needs_rows && tensor.shape.empty()) {
      return std::string(NameOf(request.collective)) + " needs a tensor of at least one dimension";
    }
  }
  if (HasRoot(request.collective) &&
      std::ranges::find(set.ranks, request.root) == set.ranks.end()) {
    return "root rank " + std::to_string(request.root) + " is not in the process set";
  }
  if (request.collective == Collective::kAlltoall && request.tensors.size() != 1) {
    return "alltoall takes one tensor, not " + std::to_string(request.tensors.size());
  }
  if (!IsBarrier(request.collective) && request.tensors.empty()) {
    return std::string(NameOf(request.collective)) + " needs a tensor";
  }
  if (request.collective == Collective::kAlltoall) {
    const int64_t rows = request.tensors[0].shape[0];
    if (request.splits.empty()) {
      if (rows % ranks != 0) {
        return "alltoall without splits: first dimension " + std::to_string(rows) +
               " is not divisible by the " + std::to_string(ranks) + " ranks of the process set";
      }
    } else if (static_cast<int64_t>(request.splits.size()) != ranks) {
      return "alltoall: " + std::to_string(request.splits.size()) + " splits for " +
             std::to_string(ranks) + " ranks";
    } else if (std::ranges::any_of(request.splits, [](int64_t part) { return part < 0; })) {
      return "alltoall: negative split";
    } else if (const int64_t sum =
                   std::accumulate(request.splits.begin(), request.splits.end(), int64_t{0});
               sum != rows) {
      return "alltoall: splits add up to " + std::to_string(sum) + ", the first dimension is " +
             std::to_string(rows);
    }
    if (!request.receives.empty() && static_cast<int64_t>(request.receives.size()) != ranks) {
      return "alltoall: room for parts of " + std::to_string(request.receives.size()) +
             " ranks, the process set has " + std::to_string(ranks);
    }
  }
  return "";
}

std::string FindNotFinite(const Request& request, std::span<const void* const> inputs) {
  if (!Reduces(request.collective)) return "";
  for (size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorMeta& tensor = request.tensors[t];
    const uint64_t count = tensor.bytes() / SizeOf(tensor.type);
    const auto found = FirstNotFinite(inputs[t], tensor.type, count);
    if (!found) continue;
    return "element " + std::to_string(*found) + " of " + std::to_string(count) +
           (request.tensors.size() > 1 ? " of tensor " + std::to_string(t) + " of the group" : "") +
           " is infinite or not a number (setting 'check_numerics')";
  }
  return "";
}

}  // namespace horoacc
