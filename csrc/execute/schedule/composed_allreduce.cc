#include "execute/schedule/composed_allreduce.h"

#include <algorithm>

namespace horoacc {

Result<std::unique_ptr<BetweenHosts>> BetweenHosts::Make(Surroundings surroundings,
                                                         const RailPart& part,
                                                         ChunkPipeline& flow) {
  std::unique_ptr<BetweenHosts> made(new BetweenHosts);
  const RunMemory memory = surroundings.memory;
  made->retire_ = std::move(surroundings.retire);
  if (!made->retire_) {
    made->retire_ = [memory](std::byte* block) {
      memory.retire ? memory.retire(block) : memory.arena->Free(block);
    };
  }
  const uint64_t bytes = std::max<uint64_t>(part.bytes(), 1);
  made->sums_ = surroundings.take ? surroundings.take(bytes)
                                  : static_cast<std::byte*>(memory.arena->Allocate(bytes));
  if (made->sums_ == nullptr) {
    return MakeError(ErrorKind::kSystem, "no shared memory left for the " + std::to_string(bytes) +
                                             " bytes of a host's sums");
  }
  HA_ASSIGN(made->run_,
            ScheduleRun::Make(*surroundings.links, std::move(surroundings.schedule),
                              surroundings.group, surroundings.options, part.PayloadIn(made->sums_),
                              std::move(surroundings.memory)));
  made->run_->Follow(flow);
  return made;
}

BetweenHosts::~BetweenHosts() {
  run_.reset();
  if (sums_ != nullptr) retire_(sums_);
}

Result<std::unique_ptr<ComposedAllreduce>> ComposedAllreduce::Make(
    const SetContext& context, ExecSlot& slot, ReduceList list, Rail rail, bool wide,
    std::optional<BetweenHosts::Surroundings> between, bool gated) {
  std::unique_ptr<ComposedAllreduce> made(
      new ComposedAllreduce(context, slot, std::move(list), rail, wide, gated));
  if (!between) return made;
  HA_ASSIGN(made->between_, BetweenHosts::Make(std::move(*between), made->part_, *made));
  return made;
}

bool ComposedAllreduce::Advance() {
  if (!between_ || told_ || failed()) return false;
  ScheduleRun& run = between_->run();
  bool moved = !run.complete() && run.Advance();
  moved |= Store();
  if (!run.complete() || stored_.at < part_.bytes()) return moved;
  told_ = true;
  slot_.slices_done.value.fetch_add(1, std::memory_order_acq_rel);
  context_.ring_others(true);
  return true;
}

// Adds up the next slice.
Result<uint64_t> ComposedAllreduce::Arrived() {
  if (summed_.at == part_.bytes()) return summed_.at;
  const RailPart::Slice slice = part_.Next(summed_, part_.bytes());
  const ReducePiece& piece = list_.pieces[slice.piece];
  inputs_.resize(context_.ranks);
  for (size_t r = 0; r < inputs_.size(); ++r)
    inputs_[r] = static_cast<const std::byte*>(piece.sources[r]) + slice.offset;
  part_.Sum(slice, inputs_, between_->sums() + slice.at);
  return summed_.at;
}

Status ComposedAllreduce::Leave(uint64_t end) {
  final_ = end;
  return {};
}

bool ComposedAllreduce::Store() {
  if (stored_.at >= final_) return false;
  const auto passage = gated_ ? SlotGate(slot_.gate).Pass() : SlotGate::Passage::kOpen;
  if (passage == SlotGate::Passage::kHeld) return false;
  const RailPart::Slice slice = part_.Next(stored_, final_);
  if (passage == SlotGate::Passage::kDropped) return true;
  const ReducePiece& piece = list_.pieces[slice.piece];
  outputs_.resize(context_.ranks);
  for (size_t r = 0; r < outputs_.size(); ++r)
    outputs_[r] = static_cast<std::byte*>(piece.destinations[r]) + slice.offset;
  part_.Finish(slice, between_->sums() + slice.at, outputs_);
  return true;
}

}  // namespace horoacc
