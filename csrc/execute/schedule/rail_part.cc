#include "execute/schedule/rail_part.h"

#include <algorithm>

namespace horoacc {
namespace {

constexpr uint64_t kSliceBytes = 256 << 10;

}  // namespace

// The cuts are at multiples of 64 bytes of the vector of whole tensors.
RailPart::RailPart(std::span<const ReducePiece> pieces, Rail rail, bool wide) : combiner_({}, {}) {
  uint64_t total = 0;
  for (const ReducePiece& piece : pieces) total += RoundUpToGrain(piece.bytes());
  const auto cut = [&](uint64_t number) { return RoundUpToGrain(total / rail.count * number); };
  const uint64_t begin = std::min(cut(rail.number), total);
  const uint64_t end =
      rail.number + 1 == rail.count ? total : std::min(cut(rail.number + 1), total);
  uint64_t start = 0;
  for (uint32_t k = 0; k < pieces.size(); ++k) {
    const ReducePiece& piece = pieces[k];
    const uint64_t element = SizeOf(piece.type);
    const uint64_t first = std::min(std::max(begin, start) - start, piece.bytes()) / element;
    const uint64_t last = std::min(std::max(end, start) - start, piece.bytes()) / element;
    start += RoundUpToGrain(piece.bytes());
    if (first >= last) continue;
    PayloadTensor tensor{.type = piece.type, .op = piece.op, .scale = piece.scale};
    tensor.count = last - first;
    tensors_.push_back(tensor);
    partial_types_.push_back(PartialTypeOf(tensor, wide));
    sections_.push_back({k, first, bytes_});
    bytes_ += RoundUpToGrain(tensor.count * SizeOf(partial_types_.back()));
  }
  combiner_ = Combiner(tensors_, partial_types_);
}

Payload RailPart::PayloadIn(std::byte* memory) const {
  Payload payload;
  payload.sums_in_outputs = true;
  for (size_t k = 0; k < sections_.size(); ++k) {
    std::byte* const sums = memory + sections_[k].start;
    payload.tensors.push_back({.type = partial_types_[k],
                               .op = tensors_[k].op,
                               .count = tensors_[k].count,
                               .input = sums,
                               .output = sums});
  }
  return payload;
}

RailPart::Slice RailPart::Next(Progress& progress, uint64_t end) const {
  const size_t k = progress.section;
  const uint64_t width = SizeOf(partial_types_[k]);
  const uint64_t element = SizeOf(tensors_[k].type);
  const uint64_t left = tensors_[k].count - progress.element;
  const uint64_t count = std::min(left, std::min(end - progress.at, kSliceBytes) / width);
  const Slice slice{.section = k,
                    .piece = sections_[k].piece,
                    .offset = (sections_[k].first + progress.element) * element,
                    .count = count,
                    .bytes = count * element,
                    .at = progress.at,
                    .sum_bytes = count * width};
  progress.element += count;
  progress.at += slice.sum_bytes;
  if (count < left) return slice;
  ++progress.section;
  progress.element = 0;
  progress.at = progress.section < sections_.size() ? sections_[progress.section].start : bytes_;
  return slice;
}

void RailPart::Sum(const Slice& slice, std::span<const std::byte* const> inputs, std::byte* sums) {
  sources_.clear();
  operands_.clear();
  for (const std::byte* input : inputs) sources_.emplace_back(input, slice.bytes);
  for (const auto& source : sources_) operands_.push_back({{&source, 1}, Form::kElements, true});
  const Extent extent{static_cast<uint32_t>(slice.section), slice.count, nullptr};
  const std::span<std::byte> sink(sums, slice.sum_bytes);
  const Target target{{&sink, 1}};
  combiner_.Combine({&extent, 1}, operands_, {&target, 1}, false);
}

void RailPart::Finish(const Slice& slice, const std::byte* sums,
                      std::span<std::byte* const> outputs) {
  sinks_.clear();
  targets_.clear();
  for (std::byte* output : outputs) sinks_.emplace_back(output, slice.bytes);
  for (const auto& sink : sinks_) targets_.push_back({{&sink, 1}});
  const Extent extent{static_cast<uint32_t>(slice.section), slice.count, nullptr};
  const std::span<const std::byte> source(sums, slice.sum_bytes);
  const Operand operand{{&source, 1}, Form::kPartial, false};
  combiner_.Combine({&extent, 1}, {&operand, 1}, targets_, true);
}

}  // namespace horoacc
