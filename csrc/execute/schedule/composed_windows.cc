#include "execute/schedule/composed_windows.h"

#include <algorithm>
#include <cstring>

namespace horoacc {

ComposedWindows::ComposedWindows(const SetContext& context, ExecSlot& slot,
                                 std::vector<ReducePiece> pieces, Rail rail, bool wide, bool gated)
    : context_(context), slot_(slot), gated_(gated), pieces_(std::move(pieces)) {
  for (uint32_t k = 0; k < rail.count; ++k) parts_.emplace_back(pieces_, Rail{k, rail.count}, wide);
  shown_.resize(rail.count);
  stored_.resize(rail.count);
  // All rails have windows under way at any time, in as much memory as the windows of one host.
  const uint64_t grain = ChunkPipeline::kGrain;
  const uint64_t place = std::max(context.window_bytes / rail.count / grain * grain, grain);
  uint64_t longest = 0;
  for (const RailPart& part : parts_) longest = std::max(longest, part.bytes());
  for (uint64_t begin = 0; begin < longest; begin += place) {
    for (uint32_t k = 0; k < rail.count; ++k) {
      const uint64_t bytes = parts_[k].bytes();
      if (begin < bytes) windows_.push_back({k, begin, std::min(begin + place, bytes)});
    }
  }
  ring_.emplace(context, slot, windows_.size(), context.ranks > 1,
                WindowRing::Places{place, uint64_t{context.window_depth} * rail.count});
  ConsumeOthers();
}

Result<std::unique_ptr<ComposedWindows>> ComposedWindows::Make(
    const SetContext& context, ExecSlot& slot, std::vector<ReducePiece> pieces, Rail rail,
    bool wide, std::optional<BetweenHosts::Surroundings> between, bool gated) {
  std::unique_ptr<ComposedWindows> made(
      new ComposedWindows(context, slot, std::move(pieces), rail, wide, gated));
  if (!between) return made;
  HA_ASSIGN(made->between_,
            BetweenHosts::Make(std::move(*between), made->parts_[context.me], *made));
  const auto offset = static_cast<uint64_t>(made->between_->sums() - context.memory[context.me]);
  slot.rank(context.me).sums.store(offset, std::memory_order_relaxed);
  return made;
}

// Copies out before it copies in, as the windows of one host do.
bool ComposedWindows::Advance() {
  if (failed()) return false;
  bool moved = between_ && !between_->run().complete() && between_->run().Advance();
  moved |= CopyOut();
  moved |= CopyIn();
  const auto ended = [this](uint32_t k) { return stored_[k].at == parts_[k].bytes(); };
  for (uint32_t k = 0; k < parts_.size() && !told_; ++k) {
    if (!ended(k)) return moved;
  }
  if (told_) return moved;
  told_ = true;
  slot_.slices_done.value.fetch_add(1, std::memory_order_acq_rel);
  context_.ring_others(true);
  return true;
}

bool ComposedWindows::CopyIn() {
  if (!ring_->MayExpose()) return false;
  const Window& window = windows_[ring_->exposed()];
  RailPart::Progress& shown = shown_[window.rail];
  while (!IsOwn(window) && shown.at < window.end) {
    const RailPart::Slice slice = parts_[window.rail].Next(shown, window.end);
    const auto* const input = static_cast<const std::byte*>(pieces_[slice.piece].input);
    std::memcpy(ring_->OwnPlace() + (slice.at - window.begin), input + slice.offset, slice.bytes);
  }
  ring_->Expose();
  return true;
}

// Windows of other rails need nothing of this rank but its input.
void ComposedWindows::ConsumeOthers() {
  uint64_t next = ring_->consumed();
  while (next < windows_.size() && !IsOwn(windows_[next])) ++next;
  ring_->ConsumeTo(next);
}

// Adds up the next window of this rail.
Result<uint64_t> ComposedWindows::Arrived() {
  const uint64_t w = ring_->consumed();
  if (w == windows_.size() || !ring_->AllExposed(w)) return summed_.at;
  RailPart& part = parts_[context_.me];
  inputs_.resize(context_.ranks);
  while (summed_.at < windows_[w].end) {
    const RailPart::Slice slice = part.Next(summed_, windows_[w].end);
    const auto* const own = static_cast<const std::byte*>(pieces_[slice.piece].input);
    for (uint32_t r = 0; r < context_.ranks; ++r) {
      inputs_[r] = r == context_.me ? own + slice.offset
                                    : ring_->Place(r, w) + (slice.at - windows_[w].begin);
    }
    part.Sum(slice, inputs_, between_->sums() + slice.at);
  }
  ring_->ConsumeTo(w + 1);
  ConsumeOthers();
  return summed_.at;
}

Status ComposedWindows::Leave(uint64_t end) {
  slot_.rank(context_.me).reduced.store(end, std::memory_order_release);
  context_.ring_others(true);
  return {};
}

// A slice of each rail's results.
bool ComposedWindows::CopyOut() {
  bool moved = false;
  for (uint32_t k = 0; k < parts_.size(); ++k) {
    const uint64_t reduced = slot_.rank(k).reduced.load(std::memory_order_acquire);
    if (stored_[k].at >= reduced) continue;
    const auto passage = gated_ ? SlotGate(slot_.gate).Pass() : SlotGate::Passage::kOpen;
    if (passage == SlotGate::Passage::kHeld) return moved;
    const RailPart::Slice slice = parts_[k].Next(stored_[k], reduced);
    moved = true;
    if (passage == SlotGate::Passage::kDropped) continue;
    const uint64_t sums = slot_.rank(k).sums.load(std::memory_order_relaxed);
    auto* const output = static_cast<std::byte*>(pieces_[slice.piece].output) + slice.offset;
    parts_[k].Finish(slice, context_.memory[k] + sums + slice.at, {&output, 1});
  }
  return moved;
}

}  // namespace horoacc
