#include "negotiate/multi_host/eager.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "execute/kernels/combine.h"
#include "schedule/select.h"

namespace horoacc {
namespace {

/// Bytes of all hosts that may come to the root for one call.
constexpr uint64_t kMostAtRoot = 4 * kMostEagerBytes;

// So that a tensor of any type is aligned.
uint64_t Padded(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

bool MayBeEager(const Request& request) {
  return request.collective == Collective::kAllreduce && request.op != ReduceOp::kAdasum &&
         request.local_error.empty();
}

bool HasHalves(const Request& request) {
  return std::ranges::any_of(request.tensors, [](const TensorMeta& tensor) {
    return tensor.type == DType::kFloat16 || tensor.type == DType::kBFloat16;
  });
}

PayloadTensor PayloadOf(const Request& request, const TensorMeta& tensor, size_t ranks) {
  const double divisor = request.op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
  return {.type = tensor.type,
          .op = request.op,
          .scale = {request.prescale, request.postscale, divisor},
          .count = tensor.count()};
}

/// A call's tensors in a row, each at a multiple of 16 bytes: inputs, results or unfinished sums,
/// which have the types that unfinished sums of schedules have.
class Packed {
 public:
  Packed(const Request& request, size_t ranks) {
    for (const TensorMeta& tensor : request.tensors) {
      tensors_.push_back(PayloadOf(request, tensor, ranks));
      partial_types_.push_back(PartialTypeOf(tensors_.back(), true));
    }
  }

  [[nodiscard]] uint64_t Bytes(Form form) const {
    uint64_t bytes = 0;
    for (size_t t = 0; t < tensors_.size(); ++t) bytes += Padded(BytesOf(t, form));
    return bytes;
  }
  [[nodiscard]] std::vector<const std::byte*> In(const std::byte* packed, Form form) const {
    std::vector<const std::byte*> tensors;
    for (size_t t = 0; t < tensors_.size(); packed += Padded(BytesOf(t++, form)))
      tensors.push_back(packed);
    return tensors;
  }

  struct Part {
    std::vector<const std::byte*> tensors;
    Form form = Form::kElements;
  };
  /// Parts in the order of the members. `form`: the result's; elements are finished.
  [[nodiscard]] std::vector<std::byte> Combine(std::span<const Part> parts, Form form) const {
    std::vector<std::byte> result(Bytes(form));
    const std::vector<const std::byte*> results = In(result.data(), form);
    Combiner combiner(tensors_, partial_types_);
    std::vector<std::span<const std::byte>> pieces(parts.size());
    std::vector<Operand> operands(parts.size());
    for (uint32_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].count == 0) continue;
      for (size_t k = 0; k < parts.size(); ++k) {
        pieces[k] = {parts[k].tensors[t], BytesOf(t, parts[k].form)};
        operands[k] = {{&pieces[k], 1}, parts[k].form, parts[k].form == Form::kElements};
      }
      const auto at = static_cast<size_t>(results[t] - result.data());
      const std::span<std::byte> sum(result.data() + at, BytesOf(t, form));
      const Target target{{&sum, 1}};
      const Extent extent{t, tensors_[t].count, nullptr};
      combiner.Combine({&extent, 1}, operands, {&target, 1}, form == Form::kElements);
    }
    return result;
  }

 private:
  [[nodiscard]] uint64_t BytesOf(size_t tensor, Form form) const {
    const PayloadTensor& whole = tensors_[tensor];
    return whole.count * SizeOf(form == Form::kPartial ? partial_types_[tensor] : whole.type);
  }

  std::vector<PayloadTensor> tensors_;
  std::vector<DType> partial_types_;
};

}  // namespace

EagerRule::EagerRule(std::span<const uint32_t> ranks_per_host, bool sums, const Settings& settings)
    : ranks_(std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), size_t{0})),
      sums_(sums),
      most_bytes_(std::min(kMostEagerBytes, kMostAtRoot / ranks_per_host.size()) /
                  (sums ? 1 : std::ranges::max(ranks_per_host))),
      none_(!ForcedAlgorithm(schedule::Goal::kAllreduce, settings).empty()),
      halves_(settings.reduction != "auto") {}

uint64_t EagerRule::BytesOf(const Request& request) const {
  if (none_ || !MayBeEager(request) || (!halves_ && HasHalves(request))) return 0;
  uint64_t bytes = 0;
  for (const TensorMeta& tensor : request.tensors) {
    const PayloadTensor payload = PayloadOf(request, tensor, ranks_);
    bytes += Padded(payload.count * SizeOf(sums_ ? PartialTypeOf(payload, true) : payload.type));
  }
  return bytes <= most_bytes_ ? bytes : 0;
}

ReadySet::Input EagerRule::Sum(const Request& request, uint32_t first,
                               std::span<const std::vector<const std::byte*>> inputs) const {
  const auto members = static_cast<uint32_t>(inputs.size());
  const Packed packed(request, ranks_);
  std::vector<std::byte> bytes;
  if (members > 1) {
    std::vector<Packed::Part> parts;
    for (const auto& tensors : inputs) parts.push_back({tensors});
    bytes = packed.Combine(parts, Form::kPartial);
  } else {
    bytes.resize(packed.Bytes(Form::kElements));
    std::byte* at = bytes.data();
    for (size_t t = 0; t < request.tensors.size(); ++t) {
      const uint64_t length = request.tensors[t].bytes();
      if (length > 0) std::memcpy(at, inputs[0][t], length);
      at += Padded(length);
    }
  }
  return {first, members, std::make_shared<const std::vector<std::byte>>(std::move(bytes))};
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
  if (!ready_set.GivesAll(ranks) || !MayBeEager(request)) return {};
  const Packed packed(request, ranks);
  std::vector<ReadySet::Input> inputs = ready_set.inputs();
  std::ranges::sort(inputs, {}, &ReadySet::Input::first);
  std::vector<Packed::Part> parts;
  for (const ReadySet::Input& input : inputs) {
    const Form form = input.members > 1 ? Form::kPartial : Form::kElements;
    if (input.bytes->size() != packed.Bytes(form)) return {};
    parts.push_back({packed.In(input.bytes->data(), form), form});
  }
  return packed.Combine(parts, Form::kElements);
}

}  // namespace horoacc
