#include "execute/schedule/composed_allreduce.h"

#include <algorithm>

namespace horoacc {
namespace {

constexpr uint64_t kSliceBytes = 256 << 10;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + ChunkPipeline::kGrain - 1) / ChunkPipeline::kGrain * ChunkPipeline::kGrain;
}

}  // namespace

// All hosts cut alike: at multiples of 64 bytes of the vector of whole tensors.
HostSums::HostSums(ReduceList list, uint32_t ranks, Rail rail, bool wide)
    : list_(std::move(list)), ranks_(ranks) {
  uint64_t total = 0;
  for (const ReducePiece& piece : list_.pieces) total += RoundUp(piece.bytes());
  const auto cut = [&](uint64_t number) { return RoundUp(total / rail.count * number); };
  const uint64_t begin = std::min(cut(rail.number), total);
  const uint64_t end =
      rail.number + 1 == rail.count ? total : std::min(cut(rail.number + 1), total);
  uint64_t start = 0;
  for (uint32_t k = 0; k < list_.pieces.size(); ++k) {
    const ReducePiece& piece = list_.pieces[k];
    const uint64_t element = SizeOf(piece.type);
    const uint64_t first = std::min(std::max(begin, start) - start, piece.bytes()) / element;
    const uint64_t last = std::min(std::max(end, start) - start, piece.bytes()) / element;
    start += RoundUp(piece.bytes());
    if (first >= last) continue;
    PayloadTensor tensor{.type = piece.type, .op = piece.op, .scale = piece.scale};
    tensor.count = last - first;
    tensors_.push_back(tensor);
    partial_types_.push_back(PartialTypeOf(tensor, wide));
    parts_.push_back({k, first, bytes_});
    bytes_ += RoundUp(tensor.count * SizeOf(partial_types_.back()));
  }
  combiner_.emplace(tensors_, partial_types_);
}

Payload HostSums::PayloadIn(std::byte* memory) {
  memory_ = memory;
  Payload payload;
  for (size_t k = 0; k < parts_.size(); ++k) {
    std::byte* const sums = memory + parts_[k].start;
    payload.tensors.push_back({.type = partial_types_[k],
                               .op = tensors_[k].op,
                               .count = tensors_[k].count,
                               .input = sums,
                               .output = sums});
  }
  return payload;
}

// Not beyond position `end`. `stage` is given a part, the tensor's first element, how many, and
// where their sums lie.
template <typename Stage>
void HostSums::NextSlice(Progress& progress, uint64_t end, Stage stage) {
  const size_t part = progress.part;
  const uint64_t width = SizeOf(partial_types_[part]);
  const uint64_t left = tensors_[part].count - progress.element;
  const uint64_t most = std::min(end - progress.at, kSliceBytes);
  const uint64_t count = std::min(left, most / width);
  std::byte* const sums = memory_ + parts_[part].start + progress.element * width;
  stage(part, parts_[part].first + progress.element, count,
        std::span<std::byte>(sums, count * width));
  progress.element += count;
  progress.at = parts_[part].start + progress.element * width;
  if (count < left) return;
  ++progress.part;
  progress.element = 0;
  progress.at = progress.part < parts_.size() ? parts_[progress.part].start : bytes_;
}

Result<uint64_t> HostSums::Arrived() {
  if (summed_.at == bytes_) return bytes_;
  NextSlice(summed_, bytes_,
            [this](size_t part, uint64_t first, uint64_t count, std::span<std::byte> sums) {
              const ReducePiece& piece = list_.pieces[parts_[part].piece];
              const uint64_t element = SizeOf(piece.type);
              const size_t ranks = ranks_;
              std::vector<std::span<const std::byte>> inputs(ranks);
              std::vector<Operand> operands(ranks);
              for (size_t r = 0; r < ranks; ++r) {
                inputs[r] = {static_cast<const std::byte*>(piece.sources[r]) + first * element,
                             count * element};
                operands[r] = {{&inputs[r], 1}, Form::kElements, true};
              }
              const Extent extent{static_cast<uint32_t>(part), count, nullptr};
              const Target target{{&sums, 1}};
              combiner_->Combine({&extent, 1}, operands, {&target, 1}, false);
            });
  return summed_.at;
}

Status HostSums::Leave(uint64_t end) {
  final_ = end;
  return {};
}

bool HostSums::Store() {
  if (stored_.at >= final_) return false;
  NextSlice(stored_, final_,
            [this](size_t part, uint64_t first, uint64_t count, std::span<std::byte> sums) {
              const ReducePiece& piece = list_.pieces[parts_[part].piece];
              const uint64_t element = SizeOf(piece.type);
              const size_t ranks = ranks_;
              std::vector<std::span<std::byte>> outputs(ranks);
              std::vector<Target> targets(ranks);
              for (size_t r = 0; r < ranks; ++r) {
                outputs[r] = {static_cast<std::byte*>(piece.destinations[r]) + first * element,
                              count * element};
                targets[r] = {{&outputs[r], 1}};
              }
              const std::span<const std::byte> readable = sums;
              const Extent extent{static_cast<uint32_t>(part), count, nullptr};
              const Operand operand{{&readable, 1}, Form::kPartial, false};
              combiner_->Combine({&extent, 1}, {&operand, 1}, targets, true);
            });
  return true;
}

Result<std::unique_ptr<ComposedAllreduce>> ComposedAllreduce::Make(const SetContext& context,
                                                                   ExecSlot& slot, ReduceList list,
                                                                   Rail rail, bool wide,
                                                                   std::optional<Between> between) {
  std::unique_ptr<ComposedAllreduce> made(new ComposedAllreduce(context, slot, rail.count));
  if (!between) return made;
  HostSums& sums = made->sums_.emplace(std::move(list), context.ranks, rail, wide);
  made->memory_ = between->memory;
  made->block_ = made->memory_.arena->Allocate(std::max<uint64_t>(sums.bytes(), 1));
  if (!made->block_) {
    return MakeError(ErrorKind::kSystem, "no shared memory left for the " +
                                             std::to_string(sums.bytes()) +
                                             " bytes of a host's sums");
  }
  HA_ASSIGN(made->run_, ScheduleRun::Make(*between->links, std::move(between->schedule),
                                          between->group, between->options,
                                          sums.PayloadIn(static_cast<std::byte*>(made->block_)),
                                          between->memory));
  made->run_->Follow(sums);
  return made;
}

ComposedAllreduce::~ComposedAllreduce() {
  run_.reset();
  if (block_ == nullptr) return;
  if (memory_.retire) {
    memory_.retire(block_);
  } else {
    memory_.arena->Free(block_);
  }
}

bool ComposedAllreduce::Advance() {
  if (!sums_ || told_ || failed()) return false;
  bool moved = !run_->complete() && run_->Advance();
  moved |= sums_->Store();
  if (!run_->complete() || !sums_->stored()) return moved;
  told_ = true;
  slot_.slices_done.value.fetch_add(1, std::memory_order_acq_rel);
  context_.ring_others(true);
  return true;
}

}  // namespace horoacc
