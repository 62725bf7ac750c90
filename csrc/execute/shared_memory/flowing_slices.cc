#include "execute/shared_memory/flowing_slices.h"

#include <algorithm>
#include <utility>

#include "execute/shared_memory/direct_slices.h"

namespace horoacc {
namespace {

constexpr uint64_t kSmallestSlice = 64 << 10;
constexpr uint64_t kLargestSlice = 1 << 20;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + ChunkPipeline::kGrain - 1) / ChunkPipeline::kGrain * ChunkPipeline::kGrain;
}

}  // namespace

FlowingSlices::FlowingSlices(const SetContext& context, ExecSlot& slot, ReduceList list,
                             uint64_t chunk_bytes, std::unique_ptr<ChunkPipeline> flow)
    : context_(context), slot_(slot), list_(std::move(list)), pipeline_(std::move(flow)) {
  uint64_t total = 0;
  for (const ReducePiece& piece : list_.pieces) {
    starts_.push_back(total);
    total += RoundUp(piece.bytes());
  }
  starts_.push_back(total);
  chunk_bytes_ = std::max(RoundUp(chunk_bytes), ChunkPipeline::kGrain);
  // Two slices a rank even out ranks that start late, as far as a slice is worth its claim.
  const uint64_t fair = chunk_bytes_ / (2 * context_.ranks);
  slice_bytes_ = RoundUp(std::min(std::clamp(fair, kSmallestSlice, kLargestSlice), chunk_bytes_));
  slices_per_chunk_ = (chunk_bytes_ + slice_bytes_ - 1) / slice_bytes_;
  chunks_ = (total + chunk_bytes_ - 1) / chunk_bytes_;
}

bool FlowingSlices::Advance() {
  if (complete() || error_) return false;
  Result<bool> moved = Turn();
  if (moved.ok()) return moved.value();
  error_ = std::move(moved.error());
  return true;
}

Result<bool> FlowingSlices::Turn() {
  HA_ASSIGN(const bool shown, Show());
  HA_ASSIGN(const bool left, Leave());
  const bool reduced = ReduceSlice();
  return shown || left || reduced;
}

uint64_t FlowingSlices::EndOf(uint64_t chunk) const {
  return std::min((chunk + 1) * chunk_bytes_, starts_.back());
}

Result<bool> FlowingSlices::Show() {
  if (shown_ == starts_.back()) return false;
  HA_ASSIGN(const uint64_t arrived, pipeline_->Arrived());
  // Whole chunks: nobody can do anything with less.
  const uint64_t whole =
      arrived >= starts_.back() ? starts_.back() : arrived / chunk_bytes_ * chunk_bytes_;
  if (whole <= shown_) return false;
  shown_ = whole;
  slot_.rank(context_.me).exposed.store(shown_, std::memory_order_release);
  context_.ring_others(true);
  return true;
}

Result<bool> FlowingSlices::Leave() {
  const uint64_t before = left_;
  while (left_ < chunks_ && IsDone(left_)) ++left_;
  if (left_ == before) return false;
  HA_TRY(pipeline_->Leave(EndOf(left_ - 1)));
  return true;
}

bool FlowingSlices::AllShow(uint64_t end) const {
  return std::ranges::all_of(context_.present, [&](uint32_t r) {
    return slot_.rank(r).exposed.load(std::memory_order_acquire) >= end;
  });
}

// A counter serves chunks in turn, and a chunk is begun only when the one before it there is done.
bool FlowingSlices::IsDone(uint64_t chunk) const {
  const uint64_t turns = chunk / kMaxWindowDepth + 1;
  return slot_.window_done[chunk % kMaxWindowDepth].value.load(std::memory_order_acquire) >=
         turns * slices_per_chunk_;
}

bool FlowingSlices::ReduceSlice() {
  uint64_t slice = slot_.next_slice.value.load(std::memory_order_relaxed);
  const uint64_t chunk = slice / slices_per_chunk_;
  if (chunk >= chunks_ || !AllShow(EndOf(chunk))) return false;
  if (chunk >= kMaxWindowDepth && !IsDone(chunk - kMaxWindowDepth)) return false;
  if (!slot_.next_slice.value.compare_exchange_strong(slice, slice + 1,
                                                      std::memory_order_relaxed)) {
    return true;  // another rank took it; there may be a next one
  }
  const uint64_t begin = chunk * chunk_bytes_ + slice % slices_per_chunk_ * slice_bytes_;
  Reduce(begin, std::min(begin + slice_bytes_, EndOf(chunk)));
  slot_.window_done[chunk % kMaxWindowDepth].value.fetch_add(1, std::memory_order_acq_rel);
  if (IsDone(chunk)) context_.ring_others(true);
  return true;
}

void FlowingSlices::Reduce(uint64_t begin, uint64_t end) const {
  if (begin >= end) return;  // the last chunk may have fewer
  size_t index = std::upper_bound(starts_.begin(), starts_.end() - 1, begin) - starts_.begin() - 1;
  for (; index < list_.pieces.size() && starts_[index] < end; ++index) {
    const ReducePiece& piece = list_.pieces[index];
    const uint64_t element = SizeOf(piece.type);
    const uint64_t first = std::max(begin, starts_[index]) - starts_[index];
    const uint64_t last = std::min(end - starts_[index], piece.bytes());
    DirectSlices::ReduceRange(context_, piece, first / element, last / element, chunk_bytes_);
  }
}

}  // namespace horoacc
