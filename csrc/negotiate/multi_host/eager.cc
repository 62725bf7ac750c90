#include "negotiate/multi_host/eager.h"

#include <algorithm>
#include <cstring>

#include "execute/kernels/reduce.h"
#include "schedule/select.h"

namespace horoacc {
namespace {

// So that a tensor of any type is aligned.
uint64_t Padded(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

uint64_t PackedBytes(const Request& request) {
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : request.tensors) bytes += Padded(tensor.bytes());
  return bytes;
}

uint64_t EagerBytes(const Request& request, size_t ranks) {
  if (request.collective != Collective::kAllreduce || request.op == ReduceOp::kAdasum) return 0;
  if (!request.local_error.empty()) return 0;
  const uint64_t bytes = PackedBytes(request);
  return bytes <= kMaxEagerBytes / ranks ? bytes : 0;
}

bool HasHalves(const Request& request) {
  return std::ranges::any_of(request.tensors, [](const TensorMeta& tensor) {
    return tensor.type == DType::kFloat16 || tensor.type == DType::kBFloat16;
  });
}

}  // namespace

EagerRule::EagerRule(size_t ranks, const Settings& settings)
    : ranks_(ranks),
      none_(!ForcedAlgorithm(schedule::Goal::kAllreduce, settings).empty()),
      halves_(settings.reduction != "auto") {}

uint64_t EagerRule::BytesOf(const Request& request) const {
  return none_ || (!halves_ && HasHalves(request)) ? 0 : EagerBytes(request, ranks_);
}

std::vector<std::byte> PackTensors(const Request& request,
                                   std::span<const std::byte* const> tensors) {
  std::vector<std::byte> packed(PackedBytes(request));
  uint64_t at = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const uint64_t bytes = request.tensors[t].bytes();
    if (bytes > 0) std::memcpy(packed.data() + at, tensors[t], bytes);
    at += Padded(bytes);
  }
  return packed;
}

void UnpackTensors(const Request& request, std::span<const std::byte> packed,
                   std::span<std::byte* const> tensors) {
  uint64_t at = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const uint64_t bytes = request.tensors[t].bytes();
    if (bytes > 0) std::memcpy(tensors[t], packed.data() + at, bytes);
    at += Padded(bytes);
  }
}

std::vector<std::byte> ReduceEager(const ReadySet& ready_set, size_t ranks) {
  const Request& request = *ready_set.groups()[0].request;
  if (EagerBytes(request, ranks) == 0 || ready_set.inputs().size() != ranks) return {};
  std::vector<const std::byte*> inputs(ranks);
  std::vector<std::byte> result(PackedBytes(request));
  for (const auto& [member, input] : ready_set.inputs()) {
    if (input->size() != result.size()) return {};
    inputs[member] = input->data();
  }
  uint64_t at = 0;
  for (const TensorMeta& tensor : request.tensors) {
    std::vector<const void*> sources;
    for (const std::byte* const input : inputs) sources.push_back(input + at);
    void* const destination = result.data() + at;
    const double divisor = request.op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
    if (tensor.count() > 0) {
      Reduce({.sources = sources,
              .destinations = {&destination, 1},
              .count = tensor.count(),
              .type = tensor.type,
              .op = request.op,
              .scale = {request.prescale, request.postscale, divisor}});
    }
    at += Padded(tensor.bytes());
  }
  return result;
}

}  // namespace horoacc
