#include "execute/shared_memory/direct_slices.h"

#include <algorithm>
#include <utility>

#include "execute/kernels/reduce.h"

namespace horoacc {
namespace {

constexpr uint64_t kSmallestSlice = 64 << 10;
constexpr uint64_t kLargestSlice = 1 << 20;
constexpr uint32_t kRanksOnStack = 64;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + ChunkPipeline::kGrain - 1) / ChunkPipeline::kGrain * ChunkPipeline::kGrain;
}

// Elements from `first` to before `last` of a piece. `whole_bytes`: of what is reduced before any
// rank reads the result.
void ReduceRange(const SetContext& context, const ReducePiece& piece, uint64_t first, uint64_t last,
                 uint64_t whole_bytes) {
  if (first >= last) return;
  const size_t ranks = context.ranks;
  const size_t present = context.present.size();
  const uint64_t offset = first * SizeOf(piece.type);
  const void* few_sources[kRanksOnStack];
  void* few_destinations[kRanksOnStack];
  std::vector<const void*> many_sources(ranks > kRanksOnStack ? ranks : 0);
  std::vector<void*> many_destinations(many_sources.size());
  const void** sources = many_sources.empty() ? few_sources : many_sources.data();
  void** destinations = many_destinations.empty() ? few_destinations : many_destinations.data();
  for (size_t r = 0; r < ranks; ++r)
    sources[r] = static_cast<const std::byte*>(piece.sources[r]) + offset;
  for (size_t k = 0; k < present; ++k)
    destinations[k] = static_cast<std::byte*>(piece.destinations[k]) + offset;
  Reduce({{sources, ranks},
          {destinations, present},
          last - first,
          piece.type,
          piece.op,
          piece.scale,
          whole_bytes});
}

}  // namespace

DirectSlices::DirectSlices(const SetContext& context, ExecSlot& slot, ReduceList list,
                           uint64_t chunk_bytes, std::unique_ptr<ChunkPipeline> pipeline)
    : context_(context), slot_(slot), list_(std::move(list)), pipeline_(std::move(pipeline)) {
  starts_.reserve(list_.pieces.size() + 1);
  uint64_t total = 0;
  for (const ReducePiece& piece : list_.pieces) {
    starts_.push_back(total);
    total += RoundUp(piece.bytes());
  }
  starts_.push_back(total);
  chunk_bytes_ = std::max(RoundUp(chunk_bytes > 0 ? chunk_bytes : total), ChunkPipeline::kGrain);
  // Several slices a rank even out ranks that start late; the bounds keep a claim's cost invisible
  // and a slice in the cache.
  const uint64_t fair = chunk_bytes_ / ((pipeline_ ? 2 : 4) * context_.ranks);
  slice_bytes_ = RoundUp(std::min(std::clamp(fair, kSmallestSlice, kLargestSlice), chunk_bytes_));
  slices_per_chunk_ = (chunk_bytes_ + slice_bytes_ - 1) / slice_bytes_;
  chunks_ = (total + chunk_bytes_ - 1) / chunk_bytes_;
}

bool DirectSlices::Advance() {
  if (complete() || error_) return false;
  const Result<bool> shown = Show();
  const Result<bool> left = shown.ok() ? Leave() : shown;
  if (left.ok()) return ClaimSlice() || shown.value() || left.value();
  error_ = left.error();
  return true;
}

uint64_t DirectSlices::EndOf(uint64_t chunk) const {
  return std::min((chunk + 1) * chunk_bytes_, starts_.back());
}

Result<bool> DirectSlices::Show() {
  if (!pipeline_ || shown_ == starts_.back()) return false;
  HA_ASSIGN(const uint64_t arrived, pipeline_->Arrived());
  // Whole chunks: no rank can do anything with less.
  const uint64_t whole =
      arrived >= starts_.back() ? starts_.back() : arrived / chunk_bytes_ * chunk_bytes_;
  if (whole <= shown_) return false;
  shown_ = whole;
  slot_.rank(context_.me).exposed.store(shown_, std::memory_order_release);
  context_.ring_others(true);
  return true;
}

Result<bool> DirectSlices::Leave() {
  const uint64_t before = left_;
  while (left_ < chunks_ && IsDone(left_)) ++left_;
  if (left_ == before) return false;
  if (pipeline_) HA_TRY(pipeline_->Leave(EndOf(left_ - 1)));
  return true;
}

bool DirectSlices::AllShow(uint64_t end) const {
  return !pipeline_ || std::ranges::all_of(context_.present, [&](uint32_t r) {
    return slot_.rank(r).exposed.load(std::memory_order_acquire) >= end;
  });
}

// A counter serves chunks in turn, and a chunk is begun only when the one before it there is done.
bool DirectSlices::IsDone(uint64_t chunk) const {
  const uint64_t turns = chunk / kMaxWindowDepth + 1;
  return slot_.window_done[chunk % kMaxWindowDepth].value.load(std::memory_order_acquire) >=
         turns * slices_per_chunk_;
}

bool DirectSlices::ClaimSlice() {
  uint64_t slice = slot_.next_slice.value.load(std::memory_order_relaxed);
  const uint64_t chunk = slice / slices_per_chunk_;
  if (chunk >= chunks_ || !AllShow(EndOf(chunk))) return false;
  if (chunk >= kMaxWindowDepth && !IsDone(chunk - kMaxWindowDepth)) return false;
  if (!slot_.next_slice.value.compare_exchange_strong(slice, slice + 1,
                                                      std::memory_order_relaxed)) {
    return true;  // another rank took it; there may be a next one
  }
  const uint64_t begin = chunk * chunk_bytes_ + slice % slices_per_chunk_ * slice_bytes_;
  ReduceBytes(begin, std::min(begin + slice_bytes_, EndOf(chunk)));
  slot_.window_done[chunk % kMaxWindowDepth].value.fetch_add(1, std::memory_order_acq_rel);
  if (IsDone(chunk)) context_.ring_others(true);
  return true;
}

void DirectSlices::ReduceBytes(uint64_t begin, uint64_t end) const {
  if (begin >= end) return;  // the last chunk may have fewer slices
  size_t index = std::upper_bound(starts_.begin(), starts_.end() - 1, begin) - starts_.begin() - 1;
  for (; index < list_.pieces.size() && starts_[index] < end; ++index) {
    const ReducePiece& piece = list_.pieces[index];
    const uint64_t element = SizeOf(piece.type);
    const uint64_t first = std::max(begin, starts_[index]) - starts_[index];
    const uint64_t last = std::min(end - starts_[index], piece.bytes());
    ReduceRange(context_, piece, first / element, last / element, chunk_bytes_);
  }
}

void DirectSlices::ReduceAll(const SetContext& context, const ReduceList& list) {
  for (const ReducePiece& piece : list.pieces) ReduceRange(context, piece, 0, piece.count, 0);
}

}  // namespace horoacc
